package etcdlock

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasehold-go/leasehold/driver"
)

// Errors to test for with errors.Is. None of them means that a lock was acquired. Each says what to
// do.
var (
	// ErrAuth: the user or password is wrong or missing, or the user's role lacks rights on the
	// prefix.
	ErrAuth = fmt.Errorf("etcdlock: %w, check name, password and role", driver.ErrDenied)
	// ErrNoSpace: the server's quota is used up. Release still works, unless the lease is to
	// linger. So does Renew, unless it changes the TTL or resumes the lease of another process.
	ErrNoSpace = fmt.Errorf("etcdlock: the server's space is %w, compact, defragment and disarm the alarm", driver.ErrFull)
	// ErrNoQuorum: no majority of the members can reach each other.
	ErrNoQuorum = errors.New("etcdlock: the cluster has no leader, check its members")
	// ErrTLS: the server's or the client's certificate is refused.
	ErrTLS = errors.New("etcdlock: TLS fails, check the server's name and the certificates")
	// ErrUnreachable: no server answers at the endpoints.
	ErrUnreachable = errors.New("etcdlock: no server can be reached, check the endpoints")
	// ErrFenceRegressed: the cluster's revision went back, because it was restored from a
	// snapshot without --bump-revision. The grant was given up, and this Driver grants no more.
	// Reset the greatest fences that the guards have seen, or restore again; then restart.
	ErrFenceRegressed = fmt.Errorf("etcdlock: the cluster's revision went back: %w", driver.ErrCorrupt)
)

// errClosing ends calls in flight when the driver is closed.
var errClosing = fmt.Errorf("etcdlock: %w", driver.ErrClosed)

// advice maps errors of the client to errors that say what to do.
var advice = []struct{ of, known error }{
	{rpctypes.ErrUserEmpty, ErrAuth}, {rpctypes.ErrAuthFailed, ErrAuth}, {rpctypes.ErrUserNotFound, ErrAuth},
	{rpctypes.ErrPermissionDenied, ErrAuth}, {rpctypes.ErrInvalidAuthToken, ErrAuth}, {rpctypes.ErrAuthOldRevision, ErrAuth},
	{rpctypes.ErrAuthNotEnabled, ErrAuth}, {rpctypes.ErrRoleNotFound, ErrAuth},
	{rpctypes.ErrNoSpace, ErrNoSpace},
	{rpctypes.ErrNoLeader, ErrNoQuorum}, {rpctypes.ErrTimeout, ErrNoQuorum},
	{rpctypes.ErrTimeoutDueToLeaderFail, ErrNoQuorum}, {rpctypes.ErrTimeoutDueToConnectionLost, ErrNoQuorum},
}

// explain wraps an error of the client with advice, if there is any. The cause stays in the chain.
func (d *Driver) explain(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case d.isClosed():
		return errClosing
	case ctx.Err() != nil:
		// While it waits for a connection, the client says only that its time is over.
		return Explain(errors.Join(ctx.Err(), d.unconnected()))
	}
	return Explain(err)
}

// Explain adds advice to an error of the client, such as one of clientv3.New, which logs in. For
// nil it returns nil.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	typed := rpctypes.Error(err)
	for _, a := range advice {
		if errors.Is(typed, a.of) {
			return fmt.Errorf("%w: %w", a.known, err)
		}
	}
	text := err.Error()
	_, unknownCA := errors.AsType[x509.UnknownAuthorityError](err)
	switch {
	case unknownCA, strings.Contains(text, "tls: "), strings.Contains(text, "x509: "):
		return fmt.Errorf("%w: %w", ErrTLS, err)
	case strings.Contains(text, "connection error: "):
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}

// askWithin bounds the question why there is no connection. The answer is known already.
const askWithin = 20 * time.Millisecond

// unconnected returns why the client has no connection, or nil if it has one or is about to.
func (d *Driver) unconnected() error {
	conn := d.client.ActiveConnection()
	if conn.GetState() == connectivity.Ready {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	_, err := pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte(d.root + "/"), CountOnly: true}, grpc.WaitForReady(false))
	if err != nil && strings.Contains(err.Error(), "connection error") {
		return err
	}
	return nil
}

// refused reports whether err is a definite no of the server, so that the call had no effect. A
// member checks for a leader, and whether it lags, before it does anything, and the client checks
// the size of a request. ErrNoSpace is not such an answer: a server whose quota ends with a call
// serves that call.
func refused(err error) bool {
	answer, _ := errors.AsType[rpctypes.EtcdError](err)
	switch answer.Code() {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition:
		return true
	}
	return errors.Is(err, rpctypes.ErrNoLeader) || errors.Is(err, rpctypes.ErrTooManyRequests) ||
		exhausted(err) && strings.Contains(err.Error(), "trying to send message larger than max")
}

// passes reports whether err may pass soon: an election, a broken connection, or a token that has
// just ended, as after a change of any user or role.
func passes(err error) bool {
	return codeOf(err) == codes.Unavailable || errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision)
}

// exhausted reports whether err says that a request is too large. A part of it may be served.
func exhausted(err error) bool { return codeOf(err) == codes.ResourceExhausted }

// tooMany reports whether the server takes fewer operations at once (--max-txn-ops).
func tooMany(err error) bool { return errors.Is(err, rpctypes.ErrTooManyOps) }

// codeOf returns the code of an error of the server or the client, even if it is wrapped.
func codeOf(err error) codes.Code {
	if answer, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return answer.Code()
	}
	return status.Code(err)
}

// isGone reports whether the server does not know the lease that a put names.
func isGone(err error) bool { return errors.Is(err, rpctypes.ErrLeaseNotFound) }

// unanswered reports whether err is not the answer of a member.
func unanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, ErrUnreachable)
}
