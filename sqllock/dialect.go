package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"strings"
)

// schemaVersion is the version row of the schema files. A program refuses a newer one.
const schemaVersion = 1

// A dialect is what one database says differently. The logic of locks is in none of them.
// Methods do not retry; errors go back as the client gave them, for busy and explain.
type dialect interface {
	statements() statements
	// check refuses a database that cannot keep locks, or whose tables are missing
	// (ErrNoSchema) or not Leasehold's (driver.ErrCorrupt). It changes nothing.
	check(ctx context.Context, db *sql.DB) error
	// create makes a database that check accepts, in one transaction. It is safe
	// beside others that do the same, and refuses what it would have to overwrite.
	create(ctx context.Context, d *Driver) error
	// intact reports, without a query, that the store is no longer the one that
	// check saw, such as a deleted file.
	intact() error
	// number runs a statement that writes at most one row and returns a number of it;
	// false if it wrote none. (RETURNING, or what stands in for it.)
	number(ctx context.Context, on runner, text string, args ...any) (int64, bool, error)
	// busy: nothing was changed, because another writer was in the way; try again.
	busy(err error) bool
	// explain turns the client's error into one that says what to do, where it can.
	explain(err error) error
}

// statements are the texts of a dialect. Arguments come in the order given here.
// {p} is the prefix of the tables.
type statements struct {
	// Each of these is a whole operation, so that it needs no transaction.

	grant      string // name, owner, ttl, note → fence: an exclusive grant, if nobody else holds or waits
	renew      string // name, owner, ttl → fence: restarts a live exclusive lease
	renewClaim string // name, owner, ttl → fence: restarts a live shared lease
	free       string // name, owner, linger → fence: ends a live exclusive lease linger from now
	leave      string // name, owner → rows: removes a live shared lease or place
	linger     string // name, owner, linger → rows: makes a live shared lease ownerless
	reason     string // name, owner → note of an evicted holder
	raise      string // name, fence: lifts the fence
	purge      string // removes expired claims
	stale      string // → how many there are

	// These make up the transaction in which Go code decides. enter is its first
	// statement and keeps every other writer of the resource out until its end.

	enter     string // name: creates the row of the resource if missing, and locks it
	saveLock  string // name, fence, owner, expires, since, note
	saveClaim string // name, ticket, owner, mode, status, lim, fence, expires, since, note
	dropClaim string // name, ticket

	// Reads. stateColumns has the columns; rows are ordered by name and ticket.

	state string // JSON array of names
	list  string // first name: resources from there on that have a live lock or claim

	// version, if not empty, is a cheap query for two numbers of the connection it
	// runs on: while both stay the same, nothing was written.
	version string

	oneWriter bool // the whole database has one writer at a time
}

// stateColumns are l.* and, where there is any, c.* of a join of locks and claims.
const stateColumns = `l.name, l.fence, l.owner, l.expires, l.since, l.note,
	coalesce(c.ticket, 0), coalesce(c.owner, ''), coalesce(c.mode, 0), coalesce(c.status, 0), coalesce(c.lim, 0),
	coalesce(c.fence, 0), coalesce(c.expires, 0), coalesce(c.since, 0), coalesce(c.note, '')`

// each calls fn with every text but version, which runs on single connections.
func (s *statements) each(fn func(text *string)) {
	for _, text := range []*string{&s.grant, &s.renew, &s.renewClaim, &s.free, &s.leave, &s.linger, &s.reason,
		&s.raise, &s.purge, &s.stale, &s.enter, &s.saveLock, &s.saveClaim, &s.dropClaim, &s.state, &s.list} {
		fn(text)
	}
}

// withPrefix puts the tables' prefix into every text.
func (s statements) withPrefix(prefix string) statements {
	s.each(func(text *string) { *text = strings.ReplaceAll(*text, "{p}", prefix) })
	return s
}

// returning is number for databases with a RETURNING clause.
func returning(ctx context.Context, on runner, text string, args ...any) (int64, bool, error) {
	rows, err := on.QueryContext(ctx, text, args...)
	if err != nil {
		return 0, false, err
	}
	defer rows.Close()
	var n int64
	found := rows.Next()
	if found {
		err = rows.Scan(&n)
	}
	for rows.Next() {
		// To the end: an autocommit statement commits in its last step.
	}
	return n, found, errors.Join(err, rows.Err(), rows.Close())
}
