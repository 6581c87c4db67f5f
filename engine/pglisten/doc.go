// Package pglisten wakes waiters of package sqllock on PostgreSQL, through LISTEN.
//
// It is a module of its own because it needs a client, pgx, and sqllock imports none.
//
//	l, err := pglisten.New("postgres://locker@db.internal/shop")
//	d, err := sqllock.NewPostgres(db, &sqllock.Options{Listen: l})
//
// A connection that listens belongs to one session for as long as it does: the address
// must be the server's, not that of a pool in transaction mode, and the database that of the
// locks. Elsewhere it hears nothing, and waiters poll: [sqllock.Driver.Listening] tells. All
// else that sqllock does may go through such a pool.
package pglisten
