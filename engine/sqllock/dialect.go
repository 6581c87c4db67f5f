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

// Versions of the tables, from the version row of the schema files. A program refuses tables that
// are newer than it knows.
//
// Migrate upgrades older tables while programs of their version go on using them. Those of
// oldestVersion queue in the record and see no places. Those of schemaVersion do not notify holders
// of places: the holders learn of them when they renew.
const (
	oldestVersion   = 2
	schemaVersion   = 3
	postgresVersion = 4
)

// A dialect holds the differences of one database. It has no lock logic. Its methods do not retry,
// and return errors as the client reported them, for busy and explain to judge.
type dialect interface {
	statements() statements
	traits() traits
	// check refuses a database that cannot keep locks. It returns ErrNoSchema if the tables are
	// missing, and driver.ErrCorrupt if they are not Leasehold's. It changes nothing.
	check(ctx context.Context, db *sql.DB) error
	// create prepares a database that check accepts. Several processes may call it at once. It
	// refuses to overwrite anything.
	create(ctx context.Context, d *Driver) error
	// intact returns an error if the store is no longer the one that check saw, for example because
	// its file was deleted. It runs no query.
	intact() error
	// look reads the settings that locks depend on.
	look(ctx context.Context, db *sql.DB) ([]driver.Finding, error)
	// creates reports whether the user may create the tables. known is false if the database does
	// not tell.
	creates(ctx context.Context, db *sql.DB) (may, known bool, err error)
	// number runs a statement that writes at most one row and returns a number from it. It returns
	// false if the statement wrote no row.
	number(ctx context.Context, on runner, text string, args ...any) (int64, bool, error)
	// changed runs a statement that writes at most one row, and reports whether it did. It costs
	// the client less than number.
	changed(ctx context.Context, on runner, text string, args ...any) (bool, error)
	// inside returns the statement for use in a transaction of ours, where it does not commit by
	// itself.
	inside(text string) string
	// busy reports whether another writer was in the way. Nothing was changed: try again.
	busy(err error) bool
	// serial reports a busy error that only transactions stricter than READ COMMITTED get: no
	// serial order of them exists.
	serial(err error) bool
	// explain turns the client's error into one that says what to do, where it can.
	explain(err error) error
}

// traits say how a database is best used.
type traits struct {
	engine    string // driver.Features.Engine
	oneWriter bool   // only one transaction at a time may write to the database
	prepares  bool   // each connection prepares the statements once; otherwise the client decides
	attempts  int    // how many busy answers end a statement; 0: only its context does
	pace      pace
	fence     fence.Dialect
}

// statements are the texts of a dialect. A comment lists a statement's arguments in order, then →
// and what it returns, or "changed" if only whether it wrote a row matters. Each is a complete
// operation that needs no transaction, so a process that stops can keep no row locked. {p} is the
// prefix of the tables, with their schema.
type statements struct {
	leaseTexts
	batchTexts
	rowTexts
	placeTexts
	idleTexts
	asking askingTexts

	// JSON list of messages: sends them to the drivers that listen; "": none listens.
	wake string

	// version, if not empty, is a cheap query for two numbers. While both stay the same on one
	// connection, nothing was written.
	version string
}

type leaseTexts struct {
	// name, owner, ttl, note → fence: grants an exclusive claim if nobody else holds or waits.
	grant string
	// name, owner, ttl, note → fence: grants the first place in the queue, if nothing but places is
	// in the way. "": the row is written instead.
	next string
	// name, owner, fence; changed: ends a live exclusive lease that nobody waits for. "": free
	// costs no more.
	give string
	// name, owner, linger, fence; changed: as free, unless the row was changed since the statement
	// began. It could not see who has come since, and would only wake all. "": free sees everybody.
	pass string
	// name, owner, linger, fence; changed: ends a live exclusive lease, after linger. It grants the
	// lock to the next waiter, or wakes the next ones.
	free string
}

// placeTexts keep the queue. Each waiter has a row, its place. Each process has one row, its
// heartbeat, which keeps all its places.
type placeTexts struct {
	// name, owner, process, mode, limit, wants, note, life, asks → as state, without places: takes
	// the last place, unless the owner holds, was given up or has a place. It refuses newcomers for
	// life. "": insert and extend do this.
	join string
	// name, owner, process, mode, limit, wants, note, number; changed: takes the last place, with a
	// number from the given one on, unless the owner has one.
	insert string
	// name, number → number, owner, mode, limit, wants, note, end of the heartbeat: the first
	// places after number. "": state returns them.
	first string
	// name, owner; changed: removes the owner's place, unless it was granted meanwhile.
	leave string
	// process, JSON list of {name, owner, seq}; changed: removes these places of the process, which
	// are over or have no waiter.
	remove string

	// process, life, number; changed: keeps the places of the process for life.
	beat string
	// process; changed: ends the heartbeat of the process, and with it all its places.
	unbeat string
	// process → name, owner, number, 1 if the place is over, fence, remaining time of the owner's
	// lease, and how long newcomers are still refused.
	mine string
	// JSON list of names, life; changed: refuses newcomers for life, where they are not refused for
	// half of it already and the row is not locked.
	extend string
	// grace; changed: removes the heartbeats that ended longer ago than grace.
	dead string
	// changed: removes places without a heartbeat.
	bury string
}

type batchTexts struct {
	// JSON list of {name, owner, ttl, note, asks} → name, owner, fence: grants free resources that
	// nobody waits for and whose rows nobody has locked. If renewed is not empty, it returns the
	// rows, and this its instant. "": there is no such statement.
	grantAll string
	// JSON list of {name, owner, fence} → name, owner, fence, or changed: ends live exclusive
	// leases that nobody waits for and whose rows nobody has locked. "": there is no such
	// statement.
	giveAll string
	// The list of giveAll, after it → name, owner, fence. The fence is 0 if giveAll did not end the
	// lease. Leases whose rows do not tell are missing. "": giveAll returns the rows.
	gaveAll string
	// JSON list of {name, owner, ttl, asks} → name, owner, fence: renews live exclusive leases
	// whose rows nobody has locked, and never shortens one. If renewed is not empty, as grantAll.
	renewAll string
	// The list of renewAll or grantAll, its instant → name, owner, fence of the live leases that
	// last for their TTL from the instant on. One that was skipped does not. "": they return the
	// rows.
	renewed string
	// JSON list of names → those whose rows nobody has locked. "": the database locks no rows.
	unlocked string
}

// askingTexts are for claims that want to know that others wait. "": the plain text serves them
// too. The fence returned by next, renewAll or renewed is negative if others wait. Where messages
// recall holders, the texts also write the mark that the holder listens.
type askingTexts struct {
	grant, next string
	// For claims that want to know of each place. "": grant and next serve them too.
	grantEach, nextEach string
	// The elements of their list also have asks.
	renewAll, renewed string
	// Has one more argument: until when the holder listens, negative if it wants to know of each
	// place.
	save string
}

type rowTexts struct {
	// name, fence, owner, expires, since, note, crowd, record, served, rev → rev: writes the row if
	// its rev is still the given one.
	save string
	// name, fence: raises the next fences. A live lease keeps its own.
	raise string
	// JSON list of names → {now}, {floor}, name and stateColumns of each. For a missing row only
	// the first three are set. It fails on a server that does not accept writes, because decisions
	// must not rest on outdated rows.
	state string
	// As state, but from any server and with all places.
	show string
	// first name, limit of at most 1001 → {now}, {floor}, name and stateColumns, with all places:
	// the resources in use from the first name on, by name.
	list string
}

type idleTexts struct {
	// name → the names of the next idle rows after it.
	idle string
	// JSON list of names: removes their rows, if they are idle.
	purge string
}

// rowColumns follow {now}, the database's instant, {floor}, the least fence to give now, and the
// name. If a row was lost, the floor is above all its fences, except for fences that were raised or
// given before the clock was set back.
const rowColumns = `coalesce(l.fence, 0), coalesce(l.owner, ''), coalesce(l.expires, 0), coalesce(l.since, 0),
	coalesce(l.note, ''), coalesce(l.rev, 0), coalesce(l.raised, 0), coalesce(l.record, ''), coalesce(l.served, 0), coalesce(l.crowd, 0)`

// stateColumns are rowColumns and the first places in the queue, as a JSON list of lists; see
// place. The places are empty in dialects that read them by first.
const stateColumns = rowColumns + `, {places}`

// inView is how many places of a queue are read: the cost of a decision must not depend on how many
// wait. Places further back wait until these have left.
const inView = 16

// liveBeat is true for a heartbeat b that counts. One that ends too far in the future was sent
// before the clock was set back.
const liveBeat = `b.ends > {now} AND b.ends < {now} + 2 * {life}`

// probe fails if the table or one of its columns is missing.
const probe = `SELECT l.name, l.fence, l.owner, l.expires, l.since, l.note, l.rev, l.crowd, l.record, l.raised FROM {p}locks l WHERE 1 = 0`

// probePlaces is probe for the tables and columns of version 3.
const probePlaces = `SELECT l.served, p.name, p.seq, p.owner, p.proc, p.mode, p.lim, p.wants, p.note, b.proc, b.ends, b.number
	FROM {p}locks l CROSS JOIN {p}places p CROSS JOIN {p}beats b WHERE 1 = 0`

// probeRecall is probe for the columns of version 4.
const probeRecall = `SELECT l.recall, p.asks FROM {p}locks l CROSS JOIN {p}places p WHERE 1 = 0`

// nothing is a record without claims.
const nothing = `{"v":1}`

// fenceLife is how long a fence is kept after the last use of its resource, in microseconds. A
// wrong time zone sets a clock back by no more than this day. Once the clock is past the fence, it
// need not be kept: the next fence comes from the clock.
const fenceLife = `86400000000`

// idleRow is true for a row l that can be removed. Nobody holds or waits, and a new row would start
// above its fence and its rev, even if the clock were set back by fenceLife. Otherwise a caller
// that read the row long ago could mistake a new row for it.
const idleRow = `l.expires < {now} - ` + fenceLife + ` AND l.crowd < {now} - ` + fenceLife + ` AND l.rev < {now} - ` + fenceLife + `
			AND l.fence < {now} - ` + fenceLife + ` AND l.raised < {now} - ` + fenceLife

// purgeAtOnce is how many rows one statement removes. Others wait for it for a few milliseconds.
const purgeAtOnce = `500`

// each calls fn with every text except version, which runs on single connections.
func (s *statements) each(fn func(text *string)) {
	all := []*string{&s.grant, &s.next, &s.grantAll, &s.giveAll, &s.gaveAll, &s.renewAll, &s.renewed, &s.unlocked, &s.give, &s.pass, &s.free, &s.save,
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

// returning implements number and changed for databases with a RETURNING clause.
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
		// Read to the end: an autocommit statement commits in its last step.
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

// pace is how often the watcher looks while nothing wakes it. A waiter is next if none is ahead of
// it.
type pace struct {
	// first is the pause of a waiter that is next, after something has changed.
	first time.Duration
	// last is the longest pause of a waiter that is next.
	last time.Duration
	// share divides the time since the last change; the quotient is the pause, between first and
	// last. Polling delays a waiter by no more than this share of its wait.
	share int
	// idle limits the cost of polling on a busy machine: the pause is at least idle times as long
	// as the last poll took.
	idle int
	// others is the least pause of a waiter that is not next.
	others time.Duration
	// far replaces last for a waiter that is not next, once nothing has changed for this long. 0:
	// it does not.
	far time.Duration
}
