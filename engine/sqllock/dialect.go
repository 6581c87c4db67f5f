package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/fence"
)

// Versions of the tables: the version row of the schema files. A program refuses a newer one than it knows. Migrate brings
// older ones up to date, beside programs that have opened the database before and go on: those of oldestVersion queue in the
// record and see no places, those of schemaVersion leave holders to learn of their places by renewals.
const (
	oldestVersion   = 2
	schemaVersion   = 3
	postgresVersion = 4
)

// A dialect is what one database says differently. The logic of locks is in none of them.
// Methods do not retry; errors go back as the client gave them, for busy and explain.
type dialect interface {
	statements() statements
	traits() traits
	// check refuses a database that cannot keep locks, or whose tables are missing
	// (ErrNoSchema) or not Leasehold's (driver.ErrCorrupt). It changes nothing.
	check(ctx context.Context, db *sql.DB) error
	// create makes a database that check accepts. It is safe beside others that do the
	// same, and refuses what it would have to overwrite.
	create(ctx context.Context, d *Driver) error
	// intact reports, without a query, that the store is no longer the one that
	// check saw, such as a deleted file.
	intact() error
	// look asks the database for what its locks depend on.
	look(ctx context.Context, db *sql.DB) ([]driver.Finding, error)
	// creates reports whether the user may create the tables; known is false where the database does not tell.
	creates(ctx context.Context, db *sql.DB) (may, known bool, err error)
	// number runs a statement that writes at most one row and returns a number of it;
	// false if it wrote none. (RETURNING, or what stands in for it.)
	number(ctx context.Context, on runner, text string, args ...any) (int64, bool, error)
	// changed runs a statement that writes at most one row and reports whether it did:
	// where that is enough, it costs the client less.
	changed(ctx context.Context, on runner, text string, args ...any) (bool, error)
	// inside is a statement for use in a transaction of ours, where it does not commit by itself.
	inside(text string) string
	// busy: nothing was changed, because another writer was in the way; try again.
	busy(err error) bool
	// serial is busy for nothing but the order in which transactions would have to come one
	// by one: it does not happen to one that is READ COMMITTED.
	serial(err error) bool
	// explain turns the client's error into one that says what to do, where it can.
	explain(err error) error
}

// traits are how a dialect wants to be used.
type traits struct {
	engine    string // driver.Features.Engine
	oneWriter bool   // the whole database has one writer at a time
	prepares  bool   // statements are prepared once a connection; else the client decides
	attempts  int    // how often a statement may find the database busy; 0: until its context ends
	pace      pace
	fence     fence.Dialect
}

// statements are the texts of a dialect. Arguments come in the order given here. Each is
// a whole operation, so that it needs no transaction: no process that is stopped can keep
// a row locked. {p} is the prefix of the tables, with their schema.
type statements struct {
	leaseTexts
	batchTexts
	rowTexts
	placeTexts
	idleTexts
	asking askingTexts

	wake string // JSON list of messages to the drivers that listen; "": nobody does

	// version, if not empty, is a cheap query for two numbers of the connection it
	// runs on: while both stay the same, nothing was written.
	version string
}

type leaseTexts struct {
	grant string // name, owner, ttl, note → fence: an exclusive grant, if nobody else holds or waits
	next  string // name, owner, ttl, note → fence: the same for the first place in the queue, if there are only places; "": it is for the row
	give  string // name, owner, fence; changed: ends a live exclusive lease for which nobody waits; "": free is as cheap
	free  string // name, owner, linger, fence; changed: ends a live exclusive lease linger from now; gives it to who is next or wakes them
}

// placeTexts keep the queue: a row per waiter, and one per process that keeps all of its places alive.
type placeTexts struct {
	join   string // name, owner, process, mode, limit, wants, note, life, how it listens for others → as of state, without places: takes the last place and has newcomers be refused for life, unless the owner holds, was given up or has a place; "": insert and extend
	insert string // name, owner, process, mode, limit, wants, note, number; changed: takes a place, the last one and after number, unless the owner has one
	first  string // name, number → number, owner, mode, limit, wants, note, end of the beat: the first places after number; "": state has them
	leave  string // name, owner; changed: removes the owner's place, if that was not granted meanwhile
	remove string // process, JSON list of {name, owner, seq}; changed: removes those of its places that are over, or that nobody knows of

	beat   string // process, life, number; changed: keeps the process' places for life
	unbeat string // process; changed: the process has no places
	mine   string // process → name, owner, number, 1 if the place is over, fence, what is left of the lease if it is the owner's, and until when newcomers are refused
	extend string // name, life; changed: has newcomers be refused for life, unless that is so for half of it or somebody has locked the row
	dead   string // grace; changed: forgets processes that have kept no place for grace
	bury   string // changed: removes the places of processes that are forgotten
}

type batchTexts struct {
	grantAll string // JSON list of {name, owner, ttl, note, asks} → name, owner, fence: grants what is free, if nobody waits for it or has locked its row. Where there is renewed, that returns them; "": there is no such statement
	giveAll  string // JSON list of {name, owner, fence} → the same, or changed: ends live exclusive leases for which nobody waits and whose rows nobody has locked; "" likewise
	gaveAll  string // the same list, after giveAll → name, owner, fence: 0 of those that it has not ended, untold of those that have ended maybe before; "": giveAll returns them
	renewAll string // JSON list of {name, owner, ttl} → name, owner, fence: lengthens live exclusive leases whose rows nobody has locked
	renewed  string // the same list → name, owner, fence of the live ones in it; "": renewAll returns them
	unlocked string // JSON list of names → those of rows that nobody has locked; "": there are no locks of rows
}

// askingTexts are for claims that want to know of others; "": the plain text serves them, too. The fence that is returned by
// next, renewAll or renewed is negative if others wait. Where places that come notify a holder, the texts also keep the mark
// that one listens.
type askingTexts struct {
	grant, next         string
	grantEach, nextEach string // for claims that want to know of each place; "": as the others
	renewAll, renewed   string // their list has asks: how the claim wants to know
	save                string // with one more argument: until when the holder listens; negative: for each place
}

type rowTexts struct {
	save  string // name, fence, owner, expires, since, note, crowd, record, served, rev → rev: writes the row if it is as it was at rev
	raise string // name, fence: lifts later fences; a lease that is live keeps its own
	state string // JSON list of names → {now}, {floor}, name and stateColumns for each, by name; of a missing row the first three alone. An error where one may not write: what is decided by it must be so
	show  string // the same, from anywhere, with all places
	list  string // first name, how many up to 1001 → {now}, {floor}, name and stateColumns, with all places, of so many in use from there on, by name
}

type idleTexts struct {
	idle  string // name → names of the next idle rows after it
	purge string // JSON list of names: removes the rows that are idle
}

// rowColumns follow the database's instant {now}, the least that a fence may be now,
// {floor}, and the name. A floor is above every fence of a row that is lost, but one that
// was raised or given before the clock was set back.
const rowColumns = `coalesce(l.fence, 0), coalesce(l.owner, ''), coalesce(l.expires, 0), coalesce(l.since, 0),
	coalesce(l.note, ''), coalesce(l.rev, 0), coalesce(l.raised, 0), coalesce(l.record, ''), coalesce(l.served, 0), coalesce(l.crowd, 0)`

// stateColumns are those and the first places in the queue, as a JSON list of lists: see place. ” where first has them.
const stateColumns = rowColumns + `, {places}`

// inView is how many places in a queue are looked at: what is decided by a row must not depend on how many wait. Those
// behind wait until these have left.
const inView = 16

// probe fails if the table or a column is missing.
const probe = `SELECT l.name, l.fence, l.owner, l.expires, l.since, l.note, l.rev, l.crowd, l.record, l.raised FROM {p}locks l WHERE 1 = 0`

// probePlaces is probe for what version 3 has added.
const probePlaces = `SELECT l.served, p.name, p.seq, p.owner, p.proc, p.mode, p.lim, p.wants, p.note, b.proc, b.ends, b.number
	FROM {p}locks l CROSS JOIN {p}places p CROSS JOIN {p}beats b WHERE 1 = 0`

// probeRecall is probe for what version 4 has added.
const probeRecall = `SELECT l.recall, p.asks FROM {p}locks l CROSS JOIN {p}places p WHERE 1 = 0`

// nothing is a record without claims.
const nothing = `{"v":1}`

// fenceLife is how long a fence is kept after the last use of its resource, in
// microseconds: a day, more than a clock is ever set back by mistake of a time zone. A
// fence that the clock has long passed is not needed: the next one comes from the clock.
const fenceLife = `86400000000`

// idleRow is true of a row l that nobody needs: nobody holds or waits, and whatever comes
// next begins above its fence and its rev, even if the clock is set back by fenceLife.
// Otherwise somebody who read the row long ago could take a new one for the old.
const idleRow = `l.expires < {now} - ` + fenceLife + ` AND l.crowd < {now} - ` + fenceLife + ` AND l.rev < {now} - ` + fenceLife + `
			AND l.fence < {now} - ` + fenceLife + ` AND l.raised < {now} - ` + fenceLife

// purgeAtOnce is how many rows one statement removes: others wait for it a few milliseconds.
const purgeAtOnce = `500`

// each calls fn with every text but version, which runs on single connections.
func (s *statements) each(fn func(text *string)) {
	all := []*string{&s.grant, &s.next, &s.grantAll, &s.giveAll, &s.gaveAll, &s.renewAll, &s.renewed, &s.unlocked, &s.give, &s.free, &s.save,
		&s.join, &s.insert, &s.first, &s.leave, &s.remove, &s.beat, &s.unbeat, &s.mine, &s.extend, &s.dead, &s.bury,
		&s.raise, &s.idle, &s.purge, &s.state, &s.show, &s.list, &s.wake}
	for _, text := range all {
		fn(text)
	}
	s.asking.each(fn)
}

func (s *askingTexts) each(fn func(text *string)) {
	for _, text := range []*string{&s.grant, &s.next, &s.grantEach, &s.nextEach, &s.save, &s.renewAll, &s.renewed} {
		fn(text)
	}
}

// withPrefix puts the tables' prefix into every text.
func (s statements) withPrefix(prefix string) statements {
	s.each(func(text *string) { *text = strings.ReplaceAll(*text, "{p}", prefix) })
	return s
}

// returning is what dialects share whose databases have a RETURNING clause.
type returning struct{}

func (returning) number(ctx context.Context, on runner, text string, args ...any) (int64, bool, error) {
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
	return n, found, cmp.Or(err, rows.Err(), rows.Close())
}

func (returning) changed(ctx context.Context, on runner, text string, args ...any) (bool, error) {
	n, err := written(ctx, on, text, args...)
	return n > 0, err
}

// written runs a statement and returns how many rows it has written.
func written(ctx context.Context, on runner, text string, args ...any) (int64, error) {
	res, err := on.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// pace is how often a waiting process looks, where nothing wakes it.
type pace struct {
	// first is the pause of who is next after something has changed.
	first time.Duration
	// last is the pause where nothing has changed for long.
	last time.Duration
	// share makes the pause a share of the quiet time, between first and last: nobody
	// waits longer by more than that.
	share int
	// idle bounds what polling may cost: the pause is at least so many times as long as
	// the poll took. It matters where the machine is too busy to poll.
	idle int
	// others is the least pause of who is not next.
	others time.Duration
	// far is last for who is not next, once nothing has changed for as long; 0: the same.
	far time.Duration
}
