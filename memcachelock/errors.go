package memcachelock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/leasehold-go/leasehold/driver"
)

// Errors to test for with errors.Is. None means that a lock is held, and each says what
// to do. Those that waiting cannot heal also match driver.ErrUnsupported.
var (
	// ErrOutOfMemory: the server has no room and does not evict (its option -M).
	ErrOutOfMemory = errors.New("memcachelock: the server is out of memory, raise its option -m")
	// ErrTooLarge: the note does not fit into an item.
	ErrTooLarge = fmt.Errorf("memcachelock: owner and note are too large for an item, shorten the note: %w", driver.ErrUnsupported)
	// ErrAuth: the server wants a user name, which the client cannot give.
	ErrAuth = fmt.Errorf("memcachelock: the server wants a password (its options -Y or -S), protect it by TLS and a firewall instead: %w", driver.ErrUnsupported)
	// ErrNoCAS: the server keeps no versions of items, so that nothing could be given up
	// without the risk of giving up somebody else's.
	ErrNoCAS = fmt.Errorf("memcachelock: the server does not compare and swap, start it without -C: %w", driver.ErrUnsupported)
)

// errUnsettled is an outcome that stays unknown.
var errUnsettled = errors.New("memcachelock: the key changed under every attempt")

// errNotSent is a call that the server cannot have got.
var errNotSent = errors.New("memcachelock: the server cannot be reached")

// advice finds the error that says what to do in the server's answer.
var advice = map[string]error{
	"SERVER_ERROR out of memory":          ErrOutOfMemory,
	"SERVER_ERROR object too large":       ErrTooLarge,
	"CLIENT_ERROR unauthenticated":        ErrAuth,
	"ERROR authentication":                ErrAuth,
	"SERVER_ERROR could not authenticate": ErrAuth,
}

// explain wraps an error of the client with the advice there is. It hides no cause.
func explain(err error) error {
	if err == nil {
		return nil
	}
	for text, known := range advice {
		if strings.Contains(err.Error(), text) {
			return fmt.Errorf("%w: %w", known, err)
		}
	}
	return err
}

// refused reports whether a conditional write found another state than it asked for.
func refused(err error) bool {
	return errors.Is(err, memcache.ErrNotStored) || errors.Is(err, memcache.ErrCASConflict) || errors.Is(err, memcache.ErrCacheMiss)
}
