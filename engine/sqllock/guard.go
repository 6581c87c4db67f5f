package sqllock

import (
	"context"
	"database/sql"

	"github.com/leasehold-go/leasehold/fence"
)

// CheckFence checks lease inside the caller's transaction. Call it before reading or writing
// what the lease guards: either both are committed or neither is. It returns [fence.ErrStale] if
// a later lease of the same name was here before. After any error roll back. From the check
// until the transaction ends, other transactions that guard the same name wait for it. The
// transaction keeps its connection: in a pool of one, no lease is renewed until it ends.
//
// tx must be on the database that d keeps its locks in, where Migrate has created the table. On
// PostgreSQL and MySQL use READ COMMITTED, or make CheckFence the first statement of tx: a
// snapshot may have read data from before the check.
//
// [ErrReadOnly] means that tx's connection leads to a server that is no longer the primary, as
// after a failover. Roll back and discard that connection by returning
// [database/sql/driver.ErrBadConn] from [sql.Conn.Raw]. Then begin again on another.
func (d *Driver) CheckFence(ctx context.Context, tx *sql.Tx, lease fence.Lease) error {
	return d.explain(ctx, d.guard.Check(ctx, tx, lease))
}
