package memcachelock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
)

// Errors to test for with errors.Is. None of them means that a lock was acquired. Each says what to
// do. Permanent ones also match driver.ErrUnsupported.
var (
	// ErrOutOfMemory: the server is full and does not evict (its option -M).
	ErrOutOfMemory = fmt.Errorf("memcachelock: the server's memory is %w, raise its option -m", driver.ErrFull)
	// ErrTooLarge: the note does not fit into an item.
	ErrTooLarge = fmt.Errorf("memcachelock: owner and note are too large for an item, shorten the note: %w", driver.ErrUnsupported)
	// ErrAuth: the server requires a user name, which the driver does not support.
	ErrAuth = fmt.Errorf("memcachelock: the server wants a password (its options -Y or -S), protect it by TLS and a firewall instead: %w", driver.ErrUnsupported)
	// ErrNoCAS: the server keeps no versions of items, so a release might release another
	// owner's lease.
	ErrNoCAS = fmt.Errorf("memcachelock: the server does not compare and swap, start it without -C: %w", driver.ErrUnsupported)
)

var (
	errUnsettled = errors.New("memcachelock: the record changed under every attempt") // the outcome is unknown
	errUnreached = errors.New("memcachelock: the server cannot be reached")           // nothing was sent
	errNone      = fmt.Errorf("%w: there is neither a lease nor a place", driver.ErrLost)
	errRefused   = answerError("another item is there")
)

// An answerError is the answer of a server that has stored nothing.
type answerError string

func (e answerError) Error() string { return "memcachelock: the server says " + string(e) }

// advice maps answers of the server to errors that say what to do.
var advice = map[string]error{
	"SERVER_ERROR out of memory":          ErrOutOfMemory,
	"SERVER_ERROR object too large":       ErrTooLarge,
	"CLIENT_ERROR unauthenticated":        ErrAuth,
	"ERROR authentication":                ErrAuth,
	"SERVER_ERROR could not authenticate": ErrAuth,
}

// explain wraps a server's answer with advice, if there is any. The cause stays in the chain.
func explain(err error) error {
	answer, refused := errors.AsType[answerError](err)
	if !refused {
		return err
	}
	for text, known := range advice {
		if strings.Contains(string(answer), text) {
			return fmt.Errorf("%w: %w", known, err)
		}
	}
	return err
}
