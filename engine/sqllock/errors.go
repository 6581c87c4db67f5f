package sqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/leasehold-go/leasehold/driver"
)

// Errors to test for with errors.Is. None of them means that a lock was acquired. Each says what to
// do.
var (
	// ErrNoSchema: the database has no lock tables. Call Driver.Migrate.
	ErrNoSchema = errors.New("the lock tables are missing: call Migrate")
	// ErrFormer: the lock tables are from an older version. Driver.Migrate upgrades them while
	// other programs use them.
	ErrFormer = errors.New("the lock tables are to be brought up to date: call Migrate, as a user who may alter them")
	// ErrReadOnly: the server is a standby, or the database is read-only. For a SQLite file that
	// may only be read, calls return driver.ErrReadOnly instead.
	ErrReadOnly = fmt.Errorf("the database is %w: connect to the primary", driver.ErrReadOnly)
	// ErrUncommitted: a statement would write inside a transaction that is open on its
	// connection, and be lost with it (MySQL and MariaDB). Autocommit is off in the settings of
	// the server or the client, a transaction was left open on a connection of the pool, or
	// completion_type=CHAIN is set. Nothing was written.
	ErrUncommitted = errors.New("statements do not commit by themselves on this connection: set autocommit=1 and completion_type=NO_CHAIN, and end transactions before the connection goes back to its pool")
	// ErrDenied: the user lacks a right that locking needs; the engine's page lists them.
	ErrDenied = fmt.Errorf("%w: it lacks a right on the lock tables", driver.ErrDenied)
	// ErrAuth: the database refuses the user or the password.
	ErrAuth = fmt.Errorf("%w, check name and password, and from where it may connect", driver.ErrDenied)
	// ErrFull: the database has no space to write.
	ErrFull = fmt.Errorf("the database is %w: make room", driver.ErrFull)
	// ErrTimeout: the database's own statement timeout ended the call.
	ErrTimeout = errors.New("the database ended the statement at its time limit")
	// ErrPooled: a pool between client and database runs statements on a connection on which
	// they were not prepared. The client must not prepare statements; the engine's page says
	// how.
	ErrPooled = errors.New("prepared statements do not survive the pool in front of the database: turn them off in the client")
	// ErrContended: a statement failed repeatedly because of concurrent ones. A waiter tries
	// again.
	ErrContended = fmt.Errorf("the database gave up the statement for others too often: %w", driver.ErrNotYet)
	// ErrConnections: the server or the user has reached its connection limit. A waiter tries
	// again.
	ErrConnections = fmt.Errorf("the server takes no more connections: raise its limit, or have fewer clients: %w", driver.ErrNotYet)
)

// explained reports whether err is one of this package's errors, which already say what to do.
func explained(err error) bool {
	return slices.ContainsFunc([]error{
		driver.ErrCorrupt, driver.ErrUnsupported, driver.ErrClosed, ErrNoSchema, ErrFormer, driver.ErrReadOnly, ErrUncommitted, driver.ErrDenied, ErrFull, ErrTimeout,
		ErrPooled, ErrContended, ErrConnections,
	}, func(known error) bool { return errors.Is(err, known) })
}

// onPurpose is a database error that a statement of ours has caused on purpose. Its text says
// nothing about its meaning.
type onPurpose struct{ means, err error }

func (e onPurpose) Error() string   { return e.means.Error() }
func (e onPurpose) Unwrap() []error { return []error{e.means, e.err} }

// unanswered reports whether err did not come from the database.
func unanswered(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, sqldriver.ErrBadConn)
}
