package sqllock

import (
	"context"
	"database/sql"
	_ "embed" // for the schema
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/fence"
)

//go:embed schema/postgres.sql
var postgresSchema string

// NewPostgres returns a Driver on a PostgreSQL database that db was opened for, by any
// client whose errors have their SQLSTATE. It does no I/O; an error is about opts. The
// first call that uses the database checks it: Migrate must have prepared it.
//
// Statements must commit by themselves. pgx takes a connection on which somebody has left a transaction open out of the
// pool. A client that does not must get none back: a lock that is granted there ends with the connection.
func NewPostgres(db *sql.DB, opts *Options) (*Driver, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if o.AllowForeign || o.Path != "" {
		return nil, fmt.Errorf("sqllock: AllowForeign and Path are for SQLite")
	}
	p := &postgres{channel: wakeChannel(o.Prefix), schema: o.Schema}
	p.server = server{engine: "postgres", prefix: o.tables(), codeOf: sqlState, codes: postgresCodes, alien: p.flaw, caused: postgresCaused,
		serialCode: "40001",
		busyCode: map[string]bool{
			"40P01": true, // deadlock
			"40001": true, // serialization failure
			"55P03": true, // the row's lock was not there in time
			"57P01": true, // the connection was ended before the statement began, or inside
		}}
	return newDriver(db, p, &o)
}

// postgres is the dialect of PostgreSQL 12 and later.
type postgres struct {
	server
	returning
	channel string
	schema  string // "": the first of the search path
}

// pgNow is the start of the statement, the same instant all through it. To wait for a row
// takes from a lease what the caller counts as well, from before its call.
const pgNow = `(date_part('epoch', statement_timestamp()) * 1000000)::bigint`

// pgFloor is the present microsecond: a statement that has waited is later than it began.
const pgFloor = `(date_part('epoch', clock_timestamp()) * 1000000)::bigint`

// pgPrimary is 1 where one may write, and on a standby 0, to divide by: what is read there may be of long ago.
const pgPrimary = `(current_setting('transaction_read_only') = 'off')::int`

// pgState follows the instant.
const pgState = `, {floor}, $1::jsonb ->> i, ` + stateColumns + ` FROM {each}
	LEFT JOIN LATERAL (SELECT * FROM {p}locks k WHERE k.name = $1::jsonb ->> i LIMIT 1) l ON true`

// pgWaiter is the name, as of called, of the waiter to wake when a resource is left; "": some
// driver should look.
const pgWaiter = `coalesce((SELECT left(h.owner, least(8, length(h.owner) / 2)) FROM (SELECT jsonb_path_query_first(l.record::jsonb,
	'$.claims[*] ? (!(exists (@.status)) && @.ends > $now).owner', jsonb_build_object('now', {now})) #>> '{}' AS owner) h), '')`

// pgHead is the first claim in the record if it waits for an exclusive lease, and all others
// wait, too: nothing else can be said against it.
const pgHead = `jsonb_path_query_first(l.record::jsonb, '$ ? (!(exists (@.claims[*].status))).claims[0] ? (!(exists (@.mode)) && @.ends > $now)',
	jsonb_build_object('now', {now}))`

// pgFree gives the resource to who is next, if that is plain, and tells it: the waiter has the
// lease with the commit of the release, for as long as it has its place.
const pgFree = `UPDATE {p}locks l SET rev = rev + 1, (owner, expires, since, note, fence, record, crowd) = (SELECT
		coalesce(h.c ->> 'owner', ''),
		CASE WHEN h.c IS NOT NULL THEN least((h.c ->> 'ends')::bigint, {now} + (h.c ->> 'wants')::bigint / 1000)
			WHEN $3::bigint > 0 THEN {now} + $3::bigint ELSE 0 END,
		CASE WHEN h.c IS NULL THEN l.since ELSE {now} END,
		CASE WHEN h.c IS NULL THEN l.note ELSE coalesce(h.c ->> 'note', '') END,
		CASE WHEN h.c IS NULL THEN l.fence ELSE greatest(l.fence + 1, l.raised + 1, {floor}) END,
		CASE WHEN h.c IS NULL THEN l.record ELSE (l.record::jsonb #- '{claims,0}')::text END,
		CASE WHEN h.c IS NOT NULL AND jsonb_array_length(l.record::jsonb -> 'claims') = 1 THEN 0 ELSE l.crowd END
		FROM (SELECT CASE WHEN $3::bigint = 0 AND l.crowd > {now} THEN {head} END AS c) h)
	WHERE name = $1::text AND owner = $2::text AND expires > {now} AND fence = $4::bigint
	RETURNING CASE WHEN l.owner <> '' THEN pg_notify('{channel}', '` + givenMessage + `' ||
			encode(sha256(convert_to(l.name || chr(10) || l.owner, 'UTF8')), 'hex') || ' ' || l.fence)::text
		WHEN $3::bigint = 0 AND l.crowd > {now} THEN pg_notify('{channel}', {waiter})::text END`

// pgEach is the indexes of the list in $1, as list(i). It takes part in how the server plans: for a list that is not known
// it reckons with a million rows, dearer than any list that is, which makes it plan for each, by the size that the table
// has then. A plan that it keeps, or a join by its statistics, can go through all rows for each name once a few leases
// have become thousands: all of it is therefore also by name, in LATERAL queries that LIMIT and FOR UPDATE keep apart.
const pgEach = `generate_series(1, least(1, jsonb_array_length($1::jsonb))) CROSS JOIN
	generate_series(0, jsonb_array_length($1::jsonb) - 1) list(i)`

func (p *postgres) statements() statements {
	s := statements{
		leaseTexts: leaseTexts{
			// The read in front spares refusals a write.
			grant: `INSERT INTO {p}locks AS l (name, fence, owner, expires, since, note, rev, crowd, record)
				SELECT $1::text, {floor}, $2::text, {now} + $3::bigint, {now}, $4::text, {now}, 0, '` + nothing + `'
				WHERE NOT EXISTS (SELECT FROM {p}locks h WHERE h.name = $1::text AND (h.expires > {now} OR h.crowd > {now}))
				ON CONFLICT (name) DO UPDATE SET fence = greatest(l.fence + 1, l.raised + 1, excluded.fence), owner = excluded.owner,
					expires = excluded.expires, since = excluded.since, note = excluded.note, rev = l.rev + 1
				WHERE l.expires <= excluded.since AND l.crowd <= excluded.since
				RETURNING fence`,
			next: `UPDATE {p}locks SET fence = greatest(fence + 1, raised + 1, {floor}), owner = $2::text, expires = {now} + $3::bigint,
					since = {now}, note = $4::text, rev = rev + 1, record = (record::jsonb #- '{claims,0}')::text,
					crowd = CASE jsonb_array_length(record::jsonb -> 'claims') WHEN 1 THEN 0 ELSE crowd END
				WHERE name = $1::text AND expires <= {now} AND record::jsonb #>> '{claims,0,owner}' = $2::text
					AND NOT jsonb_path_exists(record::jsonb, '$.claims[*].status')
				RETURNING fence`,
			join: `UPDATE {p}locks l SET rev = rev + 1, crowd = greatest(crowd, {now} + $3::bigint),
					record = (record::jsonb || jsonb_build_object('claims', coalesce(record::jsonb -> 'claims', '[]') ||
						jsonb_build_array($4::jsonb || jsonb_build_object('since', {now}, 'ends', {now} + $3::bigint))))::text
				WHERE name = $1::text AND owner <> $2::text AND (expires > {now} OR crowd > {now})
					AND NOT jsonb_path_exists(record::jsonb, '$.claims[*] ? (@.owner == $who)', jsonb_build_object('who', $2::text))
				RETURNING {now}, {floor}, l.name, ` + stateColumns,
			give: `UPDATE {p}locks SET owner = '', expires = 0, rev = rev + 1
				WHERE name = $1::text AND owner = $2::text AND expires > {now} AND crowd <= {now} AND fence = $3::bigint`,
			free: pgFree,
		},
		batchTexts: batchTexts{
			renewAll: `WITH r AS MATERIALIZED (SELECT l.name, l.owner, (r.one ->> 'ttl')::bigint AS ttl FROM (SELECT $1::jsonb -> i AS one FROM {each}) r
					CROSS JOIN LATERAL (SELECT k.name, k.owner FROM {p}locks k
						WHERE k.name = r.one ->> 'name' AND k.owner = r.one ->> 'owner' AND k.expires > {now} FOR UPDATE OF k SKIP LOCKED) l)
				UPDATE {p}locks l SET expires = greatest(l.expires, {now} + r.ttl), rev = l.rev + 1 FROM r
				WHERE l.name = ANY (ARRAY(SELECT name FROM r)) AND l.name = r.name AND l.owner = r.owner AND l.expires > {now}
				RETURNING l.name, l.owner, l.fence`,
			unlocked: `SELECT l.name FROM {each}
				CROSS JOIN LATERAL (SELECT k.name FROM {p}locks k WHERE k.name = $1::jsonb ->> i FOR UPDATE OF k SKIP LOCKED) l`,
		},
		rowTexts: rowTexts{
			save: `UPDATE {p}locks SET fence = $2::bigint, owner = $3::text, expires = $4::bigint, since = $5::bigint, note = $6::text,
					crowd = $7::bigint, record = $8::text, rev = rev + 1
				WHERE name = $1::text AND rev = $9::bigint
				RETURNING rev`,
			raise: `INSERT INTO {p}locks AS l (name, fence, owner, expires, since, note, rev, crowd, record, raised)
				VALUES ($1::text, 0, '', 0, 0, '', {now}, 0, '` + nothing + `', $2::bigint)
				ON CONFLICT (name) DO UPDATE SET raised = greatest(l.raised, excluded.raised), rev = l.rev + 1`,
			state: `SELECT {now} / ` + pgPrimary + pgState,
			show:  `SELECT {now}` + pgState,
			list: `SELECT {now}, {floor}, l.name, ` + stateColumns + ` FROM {p}locks l
				WHERE l.name >= $1::text AND (l.expires > {now} OR l.crowd > {now}) ORDER BY l.name`,
		},
		idleTexts: idleTexts{
			idle: `SELECT name FROM {p}locks l WHERE name > $1::text AND ` + idleRow + ` ORDER BY name LIMIT ` + purgeAtOnce,
			purge: `DELETE FROM {p}locks l WHERE name = ANY (ARRAY(SELECT l.name FROM {each}
				CROSS JOIN LATERAL (SELECT k.name FROM {p}locks k WHERE k.name = $1::jsonb ->> i FOR UPDATE OF k SKIP LOCKED) l)) AND ` + idleRow,
		},
		wake: `SELECT pg_notify('{channel}', message) FROM jsonb_array_elements_text($1::jsonb) AS m(message)`,
	}
	now := strings.NewReplacer("{now}", pgNow)
	put := strings.NewReplacer("{head}", now.Replace(pgHead), "{waiter}", now.Replace(pgWaiter), "{now}", pgNow, "{floor}", pgFloor, "{each}", pgEach, "{channel}", p.channel)
	s.each(func(text *string) { *text = put.Replace(*text) })
	return s
}

// serverPace is that of waiters without a Listener. Who is next looks after 4 ms, then
// when it has waited longer by a sixth, at last ten times a second. With what it takes to
// keep the place, that is no more than 20 statements a second for a process, on the
// average of four seconds.
var serverPace = pace{first: 4 * time.Millisecond, others: 60 * time.Millisecond, last: 100 * time.Millisecond, share: 6, idle: 1}

// maxAttempts is how often a statement may be the victim of a deadlock, or wait for a row
// in vain. Each time somebody else has got on.
const maxAttempts = 10

func (*postgres) traits() traits {
	return traits{engine: "postgresql", attempts: maxAttempts, fence: fence.Postgres, pace: serverPace}
}

// made are the SQLSTATEs of a table that another has made since one looked for it.
var made = map[string]bool{
	"42P07": true, // duplicate_table
	"42710": true, // duplicate_object: its type
	"23505": true, // unique_violation: of both, in the catalog
}

// mostMade is how often that can happen before all tables are there: another makes all, or only that of a guard.
const mostMade = 2

// create makes the tables in one transaction. Whoever else makes them now has this one wait, and fail when they are
// there: so it looks again. Nothing is decided by a look at the catalog inside of the transaction, which may be stale.
func (p *postgres) create(ctx context.Context, d *Driver) error {
	return d.write(ctx, nil, func(runner) error {
		for fails := 0; ; fails++ {
			ours, err := p.recognize(ctx, d.db)
			if err != nil || ours {
				return err
			}
			err = d.attempt(ctx, nil, func(tx *sql.Tx) error { return run(ctx, tx, postgresSchema, p.prefix) })
			if !made[p.codeOf(err)] || fails == mostMade {
				return err
			}
		}
	})
}

// flaw finds what would make names equal that are not, or unequal that are.
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
	"08P01": ErrPooled,         // protocol_violation: a bind with another statement's parameters
	"22P02": driver.ErrCorrupt, // invalid_text_representation: the record is no JSON
	"42703": driver.ErrCorrupt, // undefined_column
	"42P10": driver.ErrCorrupt, // invalid_column_reference: no unique key
	"42804": driver.ErrCorrupt, // datatype_mismatch
	"42883": driver.ErrCorrupt, // undefined_function: of another type
	"42P07": driver.ErrCorrupt, // duplicate_table: another program's
	"XX001": driver.ErrCorrupt, // data_corrupted
	"XX002": driver.ErrCorrupt, // index_corrupted
}

// postgresCaused is for pgPrimary.
func postgresCaused(code string, _ error) error {
	if code == "22012" { // division_by_zero
		return ErrReadOnly
	}
	return nil
}

// sqlState returns the code that pgx and lib/pq have, or "".
func sqlState(err error) string {
	coded, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	// PgBouncer says protocol_violation also of a server that has crashed.
	if !ok || coded.SQLState() == "08P01" && !strings.Contains(coded.Error(), "bind message") {
		return ""
	}
	return coded.SQLState()
}
