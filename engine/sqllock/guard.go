package sqllock

import (
	"context"
	"database/sql"

	"github.com/leasehold-go/leasehold/fence"
)

// CheckFence checks lease inside the caller's transaction, before what it is to guard is read
// or written there: either both are committed or neither is. It returns [fence.ErrStale]
// when a later lease of the same name was here before. After any error roll back. From the
// check until the transaction ends, others that guard the same name wait for it. It keeps
// its connection: in a pool of one, no lease is renewed until it ends.
//
// tx is on the database that d keeps its locks in; Migrate has made the table. On
// PostgreSQL and MySQL use READ COMMITTED, or let CheckFence be the first statement of tx:
// what a snapshot has read before may be older than the check.
//
// [ErrReadOnly] is the answer of tx's connection, which leads to a server that is the primary no more, as after a
// failover. Roll back, keep that connection from going back to the pool, by returning [database/sql/driver.ErrBadConn]
// from [sql.Conn.Raw], and begin again on another.
func (d *Driver) CheckFence(ctx context.Context, tx *sql.Tx, lease fence.Lease) error {
	return d.dialect.explain(d.guard.Check(ctx, tx, lease))
}
