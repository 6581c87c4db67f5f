// Package pglisten notifies waiters of package sqllock on PostgreSQL, through LISTEN.
//
// It is a module of its own because it needs a client, pgx, and sqllock imports none.
//
//	l, err := pglisten.New("postgres://locker@db.internal/shop")
//	d, err := sqllock.NewPostgres(db, &sqllock.Options{Listen: l})
//
// A listening connection belongs to one session. So the address must be the server's, not that
// of a pool in transaction mode, and the database must be the one with the locks. Otherwise it
// receives nothing, and waiters poll: see [sqllock.Driver.Listening]. All other calls of sqllock
// may go through such a pool.
package pglisten
