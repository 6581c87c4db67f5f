package redislock

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
)

// Errors to test for with errors.Is. None of them means that a lock was acquired. Each says what to
// do. Permanent ones also match driver.ErrCorrupt or ErrUnsupported.
var (
	// ErrWrongType: the lock key holds a value that is not a lock. Nothing was changed.
	ErrWrongType = fmt.Errorf("redislock: a lock key holds something else, choose another Options.Prefix: %w", driver.ErrCorrupt)
	// ErrDamaged: the data stored beside a lock key cannot be read completely. Another program
	// or a newer version of this package wrote it. The error ends when the places and leases in
	// that data expire.
	ErrDamaged = fmt.Errorf("redislock: what is stored about a lock cannot be read: %w", driver.ErrCorrupt)
	// ErrReadOnly: the server is a replica.
	ErrReadOnly = fmt.Errorf("redislock: the server is a replica and %w, connect to the primary or through Sentinel", driver.ErrReadOnly)
	// ErrOutOfMemory: the server has no memory for more data. Renew and Release still work.
	ErrOutOfMemory = fmt.Errorf("redislock: the server is out of memory (%w), raise maxmemory or delete data", driver.ErrFull)
	// ErrCannotSave: the server cannot write its data to disk, and refuses all writes until it
	// can. It neither grants nor renews leases; Inspect and List still work.
	ErrCannotSave = fmt.Errorf("redislock: the server cannot write to its disk and is %w, see its log and what room there is", driver.ErrReadOnly)
	// ErrLoading: the server has restarted and is loading its data.
	ErrLoading = errors.New("redislock: the server is loading its data, try again later")
	// ErrClusterDown: some of the cluster's slots are not served.
	ErrClusterDown = errors.New("redislock: the cluster is down, check CLUSTER INFO")
	// ErrMoving: the slot of the lock is migrating from one node of the cluster to another, and
	// its keys are on both. Exclusive leases are renewed all the same.
	ErrMoving = fmt.Errorf("redislock: the lock's slot is on its way to another node: %w", driver.ErrNotYet)
	// ErrAuth: the user or password is wrong or missing, or the user lacks a permission.
	ErrAuth = fmt.Errorf("redislock: %w, check name, password and ACL", driver.ErrDenied)
	// ErrOldServer: the server is older than MinVersion.
	ErrOldServer = fmt.Errorf("redislock: the server is too old, Redis %s or newer is needed: %w", MinVersion, driver.ErrUnsupported)
	// ErrFenceRegressed: the server returned a smaller fence than this driver has seen, because
	// it lost data and its clock was set back. The grant was given up. To repair, call
	// RaiseFence with a number above the resource's largest fence.
	ErrFenceRegressed = fmt.Errorf("redislock: the fence went back: %w", driver.ErrCorrupt)
	// ErrNoFenceHistory: with RequireFenceHistory, the server has no fence for the resource.
	// RaiseFence creates one.
	ErrNoFenceHistory = fmt.Errorf("redislock: no history of fences: %w", driver.ErrCorrupt)
	// ErrServerTooYoung: the server may have forgotten a grant that still counts, for example in
	// a restart; see Options.MinUptime. A waiter continues until the server is old enough.
	ErrServerTooYoung = fmt.Errorf("redislock: the server may have forgotten leases: %w", driver.ErrNotYet)
	// ErrReplicas: fewer replicas acknowledged than Options.Replicas asks for. A grant
	// was given up.
	ErrReplicas = errors.New("redislock: too few replicas acknowledged, check INFO replication")
)

// advice maps the first word of a server's error to the error that says what to do.
var advice = map[string]error{
	"WRONGTYPE": ErrWrongType, "READONLY": ErrReadOnly, "OOM": ErrOutOfMemory, "LOADING": ErrLoading, misconf: ErrCannotSave,
	"CLUSTERDOWN": ErrClusterDown, "NOAUTH": ErrAuth, "WRONGPASS": ErrAuth, "NOPERM": ErrAuth,
	"MASTERDOWN": ErrReadOnly, "NOREPLICAS": ErrReplicas, "TRYAGAIN": ErrMoving,
}

// explain wraps an error of the client with advice, if there is any. The cause stays in the chain.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("%w: %w", driver.ErrClosed, err)
	}
	text := err.Error()
	word, _, _ := strings.Cut(text, " ")
	if known := advice[word]; known != nil {
		return fmt.Errorf("%w: %w", known, err)
	}
	if !isReply(err) {
		return err
	}
	if redis.IsAuthError(err) || strings.HasPrefix(text, "ERR AUTH") || strings.Contains(text, "called without any password configured") {
		return fmt.Errorf("%w: %w", ErrAuth, err)
	}
	for _, word := range []string{"OOM", "WRONGTYPE", misconf, "READONLY"} { // errors of a command within a script
		if strings.Contains(text, word+" ") {
			return fmt.Errorf("%w: %w", advice[word], err)
		}
	}
	return err
}

// misconf begins the answer of a server that cannot save, to every command that may write and to
// PING.
const misconf = "MISCONF"

// isMisconf reports whether err is that answer.
func isMisconf(err error) bool { return isReply(err) && strings.HasPrefix(err.Error(), misconf+" ") }

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
