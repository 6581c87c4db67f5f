package sqllock

import (
	"context"
	"database/sql"
	_ "embed" // for the schema
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/fence"
)

//go:embed schema/postgres.sql
var postgresSchema string

//go:embed schema/postgres-3.sql
var postgresSchema3 string

//go:embed schema/postgres-4.sql
var postgresSchema4 string

// NewPostgres returns a Driver on a PostgreSQL database. db may use any client whose errors have
// their SQLSTATE. NewPostgres does no I/O; an error is about opts. The first call that uses the
// database checks it: Migrate must have prepared it.
//
// Statements must commit by themselves. pgx discards a connection with an open transaction. With
// a client that does not, the pool must not contain such connections: a lock that is granted
// there ends with the connection.
func NewPostgres(db *sql.DB, opts *Options) (*Driver, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if o.AllowForeign || o.Path != "" {
		return nil, fmt.Errorf("sqllock: AllowForeign and Path are for SQLite")
	}
	p := &postgres{channel: wakeChannel(o.Prefix), schema: o.Schema, listens: o.Listen != nil}
	p.server = server{engine: "postgres", version: postgresVersion, prefix: o.tables(), codeOf: sqlState, codes: postgresCodes, alien: p.flaw, caused: postgresCaused,
		serialCode: "40001",
		busyCode: map[string]bool{
			"40P01": true, // deadlock
			"40001": true, // serialization failure
			"55P03": true, // the row's lock was not there in time
			"57P01": true, // the connection was ended, before the statement began or during it
		}}
	return newDriver(db, p, &o)
}

// postgres is the dialect of PostgreSQL 12 and later.
type postgres struct {
	server
	returning
	channel string
	schema  string // "": the first of the search path
	listens bool   // there is a Listener
}

// pgNow is the start of the statement, and stays the same during it. Waiting for a row shortens the
// lease, but no more than the caller's own count, which starts before its call.
const pgNow = `(date_part('epoch', statement_timestamp()) * 1000000)::bigint`

// pgFloor is the current microsecond, which is later than pgNow if the statement has waited.
const pgFloor = `(date_part('epoch', clock_timestamp()) * 1000000)::bigint`

// pgPrimary is a divisor: 1 where writes are accepted, 0 on a standby, whose rows may be outdated.
const pgPrimary = `(current_setting('transaction_read_only') = 'off')::int`

// pgState is the rest of state and show, which follows the instant.
const pgState = `, {floor}, $1::jsonb ->> i, ` + stateColumns + ` FROM {each}
	LEFT JOIN LATERAL (SELECT * FROM {p}locks k WHERE k.name = $1::jsonb ->> i LIMIT 1) l ON true`

// pgWaits selects the places of l that count.
const pgWaits = `FROM {p}places p JOIN {p}beats b ON b.proc = p.proc
	WHERE p.name = l.name AND p.seq > l.served AND ` + liveBeat

// pgPlaces is pgWaits, in order.
const pgPlaces = pgWaits + ` ORDER BY p.seq LIMIT `

// pgOthers is true if owners other than the holder wait for l.
const pgOthers = `EXISTS (SELECT ` + pgWaits + ` AND p.owner <> l.owner)`

// pgTold is the fence of l, negative if others wait. The function told splits it.
const pgTold = `CASE WHEN ` + pgOthers + ` THEN -l.fence ELSE l.fence END`

// pgTells is the new mark of a row whose holder a join notifies: 1 if the holder listened for one
// place, which this join is. A negative mark stays, as its holder listens for each place.
const pgTells = `CASE WHEN recall > {now} THEN 1 WHEN recall > 0 THEN 0 ELSE recall END`

// pgComes notifies the holder of a place if the mark says that it listens. The message has hashes
// of the name and of the place's owner.
const pgComes = `CASE WHEN l.recall = 1 OR l.recall < -{now} THEN pg_notify('{channel}', '` + wantedMessage + `' || encode(sha256(convert_to(l.name, 'UTF8')), 'hex') || ' ' ||
	encode(sha256(convert_to(l.name || chr(10) || $2::text, 'UTF8')), 'hex'))::text END`

// pgView is the places of l that count, or the first {many} of them, as JSON.
const pgView = `(SELECT coalesce(json_agg(json_build_array(h.seq, h.owner, h.mode, h.lim, h.wants, h.note, h.ends)), '[]')::text
	FROM (SELECT p.*, b.ends ` + pgPlaces + `{many}) h)`

// pgUnchanged is true if nobody has changed the row since the statement's snapshot. A statement
// that has waited for the row sees its new version, but everything else as of the snapshot. Without
// the check it could grant the lock to a waiter that has left, or pass over one that has come.
const pgUnchanged = `l.rev = (SELECT s.rev FROM {p}locks s WHERE s.name = $1::text)`

// pgKeeps is the mark after the row was written as a record: the exclusive holder keeps its own,
// and no other mark stays.
const pgKeeps = `CASE owner WHEN $3::text THEN recall ELSE 0 END`

// pgMarks is pgKeeps if another holder listens from now on.
const pgMarks = `CASE WHEN least($11::bigint, ` + pgKeeps + `) < 0 THEN -greatest(abs($11::bigint), abs(` + pgKeeps + `)) ELSE greatest($11::bigint, ` + pgKeeps + `) END`

// pgFree ends a lease. It grants the lock to the next waiter, if no record is needed for that, and
// notifies it. The waiter holds the lease from the commit of the release until its process's
// heartbeat ends. t is the row that is changed, and l the same row in the statement's snapshot, as
// are the places. They differ if the statement has waited for the row; see pgUnchanged.
//
// The message has the number of that heartbeat, because the waiter knows when it sent it, and counts
// from then. The server counts the lease from when it served the heartbeat, or from later. So the
// waiter's count ends no later. (The clock is read after the snapshot, which includes the
// heartbeat.)
//
// Each subquery costs time at each execution, even one that is not used; see
// docs/decisions/postgres-release-grants.md.
const pgFree = `UPDATE {p}locks t SET rev = t.rev + 1,
		owner = CASE WHEN {gives} THEN h.owner ELSE '' END,
		expires = CASE WHEN {gives} THEN least(h.ends, {floor} + h.wants) WHEN $3::bigint > 0 THEN {now} + $3::bigint ELSE 0 END,
		since = CASE WHEN {gives} THEN {now} ELSE t.since END,
		note = CASE WHEN {gives} THEN h.note ELSE t.note END,
		fence = CASE WHEN {gives} THEN greatest(t.fence + 1, t.raised + 1, {floor}) ELSE t.fence END,
		served = CASE WHEN {gives} THEN h.seq ELSE t.served END,
		recall = CASE WHEN {gives} THEN CASE h.asks WHEN 2 THEN -({now} + h.wants) WHEN 1 THEN CASE WHEN h.others THEN 1 ELSE {now} + h.wants END ELSE 0 END ELSE 0 END,
		crowd = CASE WHEN {gives} THEN CASE h.seq WHEN t.tail THEN 0 ELSE greatest(t.crowd, {now} + {life}) END ELSE t.crowd END
	FROM {p}locks l LEFT JOIN LATERAL (SELECT n.*, CASE WHEN n.asks > 0 THEN EXISTS (SELECT ` + pgWaits + ` AND p.owner <> n.owner) END AS others
		FROM (SELECT p.*, b.ends, b.number ` + pgPlaces + `1) n
		WHERE n.mode = 0 AND n.lim = 0 AND n.ends > {floor} + 1000000 AND $3::bigint = 0 AND l.crowd > {now} AND l.record = '` + nothing + `') h ON true
	WHERE l.name = $1::text AND t.name = $1::text AND t.owner = $2::text AND t.expires > {now} AND t.fence = $4::bigint{unless}
	RETURNING CASE WHEN t.owner <> '' THEN pg_notify('{channel}', '` + givenMessage + `' ||
			encode(sha256(convert_to(t.name || chr(10) || t.owner, 'UTF8')), 'hex') || ' ' || t.fence || ' ' || h.number ||
			CASE WHEN h.others THEN ' ` + othersWait + `' ELSE '' END)::text
		WHEN $3::bigint = 0 AND t.crowd > {now} THEN pg_notify('{channel}', '` + lookMessage + `')::text END`

// pgEach is the indexes of the list in $1, as list(i). It is written so that PostgreSQL plans each
// execution again. For an unknown list the planner expects a million rows, which costs more than
// any actual list. So it never keeps a generic plan, and each plan suits the size of the table at
// that time.
//
// A kept plan, or a join by outdated statistics, could scan the whole table for each name once a
// few leases have become thousands. So statements also look up each row by name, in LATERAL queries
// that LIMIT and FOR UPDATE keep separate.
const pgEach = `generate_series(1, least(1, jsonb_array_length($1::jsonb))) CROSS JOIN
	generate_series(0, jsonb_array_length($1::jsonb) - 1) list(i)`

func (p *postgres) statements() statements {
	s := statements{
		leaseTexts: leaseTexts{
			// The read in front avoids a write if the call is refused.
			grant: `INSERT INTO {p}locks AS l (name, fence, owner, expires, since, note, rev, crowd, record, recall)
				SELECT $1::text, {floor}, $2::text, {now} + $3::bigint, {now}, $4::text, {now}, 0, '` + nothing + `', {until}
				WHERE NOT EXISTS (SELECT FROM {p}locks h WHERE h.name = $1::text AND (h.expires > {now} OR h.crowd > {now}))
				ON CONFLICT (name) DO UPDATE SET fence = greatest(l.fence + 1, l.raised + 1, excluded.fence), owner = excluded.owner,
					expires = excluded.expires, since = excluded.since, note = excluded.note, recall = excluded.recall, rev = l.rev + 1
				WHERE l.expires <= excluded.since AND l.crowd <= excluded.since
				RETURNING fence`,
			next: `UPDATE {p}locks l SET fence = greatest(fence + 1, raised + 1, {floor}), owner = $2::text, expires = {now} + $3::bigint,
					since = {now}, note = $4::text, rev = rev + 1, served = p.seq, recall = {until}, crowd = CASE l.tail WHEN p.seq THEN 0 ELSE greatest(l.crowd, {now} + {life}) END
				FROM {p}places p WHERE l.name = $1::text AND p.name = l.name AND p.owner = $2::text AND p.seq > l.served
					AND l.expires <= {now} AND l.record = '` + nothing + `' AND ` + pgUnchanged + `
					AND p.seq <= (SELECT p.seq ` + pgPlaces + `1)
				RETURNING {told}`,
			give: `UPDATE {p}locks SET owner = '', expires = 0, rev = rev + 1
				WHERE name = $1::text AND owner = $2::text AND expires > {now} AND crowd <= {now} AND fence = $3::bigint`,
			pass: strings.NewReplacer("{gives}", "h.owner IS NOT NULL", "{unless}", " AND (t.rev = l.rev OR t.crowd <= {now} AND h.owner IS NULL)").Replace(pgFree),
			free: strings.NewReplacer("{gives}", "t.rev = l.rev AND h.owner IS NOT NULL", "{unless}", "").Replace(pgFree),
		},
		batchTexts: batchTexts{
			grantAll: `WITH r AS MATERIALIZED (SELECT l.name, r.one ->> 'owner' AS owner, (r.one ->> 'ttl')::bigint AS ttl, coalesce(r.one ->> 'note', '') AS note,
						r.one ->> 'asks' AS asks
					FROM (SELECT $1::jsonb -> i AS one FROM {each}) r CROSS JOIN LATERAL (SELECT k.name FROM {p}locks k
						WHERE k.name = r.one ->> 'name' AND k.expires <= {now} AND k.crowd <= {now} FOR UPDATE OF k SKIP LOCKED) l)
				UPDATE {p}locks l SET fence = greatest(l.fence + 1, l.raised + 1, {floor}), owner = r.owner, expires = {now} + r.ttl, since = {now},
					note = r.note, recall = CASE r.asks WHEN '2' THEN -({now} + r.ttl) WHEN '1' THEN {now} + r.ttl ELSE 0 END, rev = l.rev + 1 FROM r
				WHERE l.name = ANY (ARRAY(SELECT name FROM r)) AND l.name = r.name AND l.expires <= {now} AND l.crowd <= {now}
				RETURNING l.name, l.owner, l.fence`,
			giveAll: `WITH r AS MATERIALIZED (SELECT l.name, l.owner FROM (SELECT $1::jsonb -> i AS one FROM {each}) r
					CROSS JOIN LATERAL (SELECT k.name, k.owner FROM {p}locks k WHERE k.name = r.one ->> 'name' AND k.owner = r.one ->> 'owner'
						AND k.fence = (r.one ->> 'fence')::bigint AND k.expires > {now} AND k.crowd <= {now} FOR UPDATE OF k SKIP LOCKED) l)
				UPDATE {p}locks l SET owner = '', expires = 0, rev = l.rev + 1 FROM r
				WHERE l.name = ANY (ARRAY(SELECT name FROM r)) AND l.name = r.name AND l.owner = r.owner AND l.expires > {now} AND l.crowd <= {now}
				RETURNING l.name, r.owner, l.fence`,
			renewAll: `WITH r AS MATERIALIZED (SELECT l.name, l.owner, (r.one ->> 'ttl')::bigint AS ttl{asks} FROM (SELECT $1::jsonb -> i AS one FROM {each}) r
					CROSS JOIN LATERAL (SELECT k.name, k.owner FROM {p}locks k
						WHERE k.name = r.one ->> 'name' AND k.owner = r.one ->> 'owner' AND k.expires > {now} FOR UPDATE OF k SKIP LOCKED) l)
				UPDATE {p}locks l SET expires = greatest(l.expires, {now} + r.ttl){marks}, rev = l.rev + 1 FROM r
				WHERE l.name = ANY (ARRAY(SELECT name FROM r)) AND l.name = r.name AND l.owner = r.owner AND l.expires > {now}
				RETURNING l.name, l.owner, {renewed}`,
			unlocked: `SELECT l.name FROM {each}
				CROSS JOIN LATERAL (SELECT k.name FROM {p}locks k WHERE k.name = $1::jsonb ->> i FOR UPDATE OF k SKIP LOCKED) l`,
		},
		rowTexts: rowTexts{
			save: `UPDATE {p}locks SET fence = $2::bigint, owner = $3::text, expires = $4::bigint, since = $5::bigint, note = $6::text,
					crowd = $7::bigint, record = $8::text, served = $9::bigint, recall = {keeps}, rev = rev + 1
				WHERE name = $1::text AND rev = $10::bigint
				RETURNING rev`,
			raise: `INSERT INTO {p}locks AS l (name, fence, owner, expires, since, note, rev, crowd, record, raised)
				VALUES ($1::text, 0, '', 0, 0, '', {now}, 0, '` + nothing + `', $2::bigint)
				ON CONFLICT (name) DO UPDATE SET raised = greatest(l.raised, excluded.raised), rev = l.rev + 1`,
			state: strings.ReplaceAll(`SELECT {now} / `+pgPrimary+pgState, "{places}", strings.ReplaceAll(pgView, "{many}", strconv.Itoa(inView))),
			show:  `SELECT {now}` + pgState,
			// For an unknown limit, PostgreSQL plans for a tenth of all rows.
			list: `SELECT * FROM (SELECT {now}, {floor}, l.name, ` + stateColumns + ` FROM {p}locks l
				WHERE l.name >= $1::text AND (l.expires > {now} OR l.crowd > {now}) ORDER BY l.name LIMIT 1001) l LIMIT $2::bigint`,
		},
		placeTexts: placeTexts{
			join: `WITH l AS (UPDATE {p}locks l SET rev = rev + 1, tail = greatest(tail + 1, {floor}), crowd = greatest(crowd, {now} + $8::bigint),
						recall = ` + pgTells + `
					WHERE name = $1::text AND NOT (owner = $2::text AND expires > {now}) AND (record = '` + nothing + `'
						OR NOT jsonb_path_exists(record::jsonb, '$.claims[*] ? (@.owner == $who)', jsonb_build_object('who', $2::text)))
					RETURNING *),
				p AS (INSERT INTO {p}places AS p (name, seq, owner, proc, mode, lim, wants, note, asks)
					SELECT name, tail, $2::text, $3::text, $4::integer, $5::bigint, $6::bigint, $7::text, $9::smallint FROM l
					ON CONFLICT (name, owner) DO UPDATE SET proc = excluded.proc, asks = excluded.asks, wants = greatest(p.wants, excluded.wants),
						seq = CASE WHEN p.seq > (SELECT served FROM l) THEN p.seq ELSE excluded.seq END)
				SELECT {now}, {floor}, l.name, ` + rowColumns + `, '[]' || coalesce(` + pgComes + `, '') FROM l`,
			// Waiters are notified if one of them may hold, now that the place is gone. If the statement has
			// waited for the row, its snapshot may lack their places.
			leave: `WITH gone AS (DELETE FROM {p}places WHERE name = $1::text AND owner = $2::text RETURNING seq)
				UPDATE {p}locks l SET rev = rev + 1 WHERE name = $1::text AND EXISTS (SELECT FROM gone) AND NOT (owner = $2::text AND expires > {now})
				RETURNING CASE WHEN (l.expires <= {now} OR l.record <> '` + nothing + `') AND (l.rev - 1 <> (SELECT s.rev FROM {p}locks s WHERE s.name = $1::text)
						OR EXISTS (SELECT FROM {p}places p WHERE p.name = l.name AND p.owner <> $2::text))
					THEN pg_notify('{channel}', '` + lookMessage + `')::text END`,
			remove: `DELETE FROM {p}places p USING jsonb_to_recordset($2::jsonb) AS r(name text, owner text, seq bigint)
				WHERE p.proc = $1::text AND p.name = r.name AND p.owner = r.owner AND p.seq = r.seq`,
			beat: `INSERT INTO {p}beats (proc, ends, number) VALUES ($1::text, {floor} + $2::bigint, $3::bigint)
				ON CONFLICT (proc) DO UPDATE SET ends = excluded.ends, number = excluded.number`,
			unbeat: `DELETE FROM {p}beats WHERE proc = $1::text`,
			mine: `SELECT p.name, p.owner, p.seq, (p.seq <= coalesce(l.served, 0))::int / ` + pgPrimary + `, coalesce(l.fence, 0),
					CASE l.owner WHEN p.owner THEN l.expires - {floor} ELSE 0 END, coalesce(l.crowd, 0) - {now}
				FROM {p}places p LEFT JOIN {p}locks l ON l.name = p.name WHERE p.proc = $1::text`,
			extend: `UPDATE {p}locks SET crowd = {now} + $2::bigint
				WHERE name = ANY (ARRAY(SELECT l.name FROM {each} CROSS JOIN LATERAL (SELECT k.name FROM {p}locks k
					WHERE k.name = $1::jsonb ->> i AND k.crowd < {now} + $2::bigint / 2 FOR UPDATE OF k SKIP LOCKED) l))`,
			dead: `DELETE FROM {p}beats WHERE ends < {now} - $1::bigint`,
			bury: `DELETE FROM {p}places p WHERE NOT EXISTS (SELECT FROM {p}beats b WHERE b.proc = p.proc)`,
		},
		idleTexts: idleTexts{
			idle: `SELECT name FROM {p}locks l WHERE name > $1::text AND ` + idleRow + ` ORDER BY name LIMIT ` + purgeAtOnce,
			purge: `DELETE FROM {p}locks l WHERE name = ANY (ARRAY(SELECT l.name FROM {each}
				CROSS JOIN LATERAL (SELECT k.name FROM {p}locks k WHERE k.name = $1::jsonb ->> i FOR UPDATE OF k SKIP LOCKED) l)) AND ` + idleRow,
		},
		wake: `SELECT pg_notify('{channel}', message) FROM jsonb_array_elements_text($1::jsonb) AS m(message)`,
	}
	// A holder that listens leaves a mark in the row: until when it listens.
	s.asking = askingTexts{grant: s.grant, next: s.next, grantEach: s.grant, nextEach: s.next, renewAll: s.renewAll, save: s.save}
	plain := strings.NewReplacer("{asks}", "", "{until}", "0", "{marks}", "", "{keeps}", pgKeeps, "{told}", "l.fence", "{renewed}", "l.fence")
	until, marks := "{now} + $3::bigint", ", recall = CASE WHEN r.asks IS NULL THEN l.recall ELSE greatest(l.expires, {now} + r.ttl) * CASE r.asks WHEN '2' THEN -1 ELSE 1 END END"
	if !p.listens {
		until, marks, s.asking.grant, s.asking.grantEach, s.asking.nextEach, s.asking.save = "0", "", "", "", "", ""
	}
	each := strings.NewReplacer("{until}", "-("+until+")")
	s.asking.grantEach, s.asking.nextEach = each.Replace(s.asking.grantEach), each.Replace(s.asking.nextEach)
	asking := strings.NewReplacer("{asks}", ", r.one ->> 'asks' AS asks", "{until}", until, "{marks}", marks,
		"{keeps}", pgMarks, "{told}", pgTold, "{renewed}", "CASE WHEN r.asks IS NULL THEN l.fence ELSE "+pgTold+" END")
	s.asking.each(func(text *string) { *text = asking.Replace(*text) })
	s.each(func(text *string) { *text = plain.Replace(*text) })
	put := strings.NewReplacer("{now}", pgNow, "{floor}", pgFloor, "{each}", pgEach, "{channel}", p.channel, "{life}", placeMicros, "{many}", "ALL")
	s.each(func(text *string) { *text = put.Replace(strings.ReplaceAll(*text, "{places}", pgView)) })
	return s
}

// serverPace is for waiters without a Listener. The next waiter looks after 4 ms, then whenever its
// wait has grown by a sixth, and finally ten times a second. Together with keeping the place, a
// process runs at most 20 statements a second, averaged over four seconds.
var serverPace = pace{first: 4 * time.Millisecond, others: 60 * time.Millisecond, last: 100 * time.Millisecond, share: 6, idle: 1, far: maxBlind}

// maxAttempts is how often a statement may be the victim of a deadlock or time out on a row's lock.
// Each time another statement has made progress.
const maxAttempts = 10

func (*postgres) traits() traits {
	return traits{engine: "postgresql", attempts: maxAttempts, fence: fence.Postgres, pace: serverPace}
}

// made are the SQLSTATEs of creating a table that another session has created since this one
// looked.
var made = map[string]bool{
	"42P07": true, // duplicate_table
	"42710": true, // duplicate_object: its type
	"23505": true, // unique_violation: of either, in the catalog
}

// mostMade is how often that can happen before all tables exist. The other session creates all of
// them, or only the table of a guard.
const mostMade = 2

// create creates the tables in one transaction. If another session creates them now, this one waits
// for it, fails, and looks again. A look at the catalog inside the transaction decides nothing,
// because it may be outdated.
func (p *postgres) create(ctx context.Context, d *Driver) error {
	return d.write(ctx, nil, func(runner) error {
		for fails := 0; ; fails++ {
			version, err := p.recognize(ctx, d.db)
			if err != nil || version == p.version {
				return err
			}
			schema := postgresSchema3 + postgresSchema4
			if version == 0 {
				schema = postgresSchema + schema
			}
			err = d.attempt(ctx, nil, func(tx *sql.Tx) error { return run(ctx, tx, schema, p.prefix) })
			if !made[p.codeOf(err)] || fails == mostMade {
				return err
			}
		}
	})
}

// flaw finds a collation or column type that would make different names equal, or equal names
// different.
func (p *postgres) flaw(ctx context.Context, q querier) (string, error) {
	var encoding, collation string
	err := q.QueryRowContext(ctx, `SELECT current_setting('server_encoding'), coalesce(max(c.collname), '')
		FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation
		WHERE a.attrelid = '`+p.prefix+`locks'::regclass AND a.attname = 'name'`).Scan(&encoding, &collation)
	switch {
	case err != nil:
		return "", err
	case encoding != "UTF8":
		return "", fmt.Errorf("%w: the database has the encoding %s: names need one with UTF8", driver.ErrUnsupported, encoding)
	case collation != "C":
		return fmt.Sprintf("the column of names has the collation %q and needs \"C\"", collation), nil
	}
	return "", nil
}

// postgresCodes are SQLSTATEs; see appendix A of the PostgreSQL manual.
var postgresCodes = map[string]error{
	"25006": ErrReadOnly,       // read_only_sql_transaction
	"42P01": ErrNoSchema,       // undefined_table
	"3F000": ErrNoSchema,       // invalid_schema_name
	"42501": ErrDenied,         // insufficient_privilege
	"28000": ErrAuth,           // invalid_authorization_specification
	"28P01": ErrAuth,           // invalid_password
	"53100": ErrFull,           // disk_full
	"53300": ErrConnections,    // too_many_connections
	"57014": ErrTimeout,        // query_canceled
	"26000": ErrPooled,         // invalid_sql_statement_name
	"42P05": ErrPooled,         // duplicate_prepared_statement
	"08P01": ErrPooled,         // protocol_violation: a bind message for another statement's parameters
	"22P02": driver.ErrCorrupt, // invalid_text_representation: the record is not JSON
	"42703": driver.ErrCorrupt, // undefined_column
	"42P10": driver.ErrCorrupt, // invalid_column_reference: no unique key
	"42804": driver.ErrCorrupt, // datatype_mismatch
	"42883": driver.ErrCorrupt, // undefined_function: a column has another type
	"42P07": driver.ErrCorrupt, // duplicate_table: it belongs to another program
	"XX001": driver.ErrCorrupt, // data_corrupted
	"XX002": driver.ErrCorrupt, // index_corrupted
}

// postgresCaused recognizes the division by pgPrimary.
func postgresCaused(code string, _ error) error {
	if code == "22012" { // division_by_zero
		return ErrReadOnly
	}
	return nil
}

// sqlState returns the SQLSTATE of an error of pgx or lib/pq, or "".
func sqlState(err error) string {
	coded, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	// PgBouncer also reports protocol_violation for a server that has crashed.
	if !ok || coded.SQLState() == "08P01" && !strings.Contains(coded.Error(), "bind message") {
		return ""
	}
	return coded.SQLState()
}
