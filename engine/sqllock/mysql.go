package sqllock

import (
	"context"
	"database/sql"
	_ "embed" // for the schema
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/fence"
)

//go:embed schema/mysql.sql
var mysqlSchema string

//go:embed schema/mysql-3.sql
var mysqlSchema3 string

// NewMySQL returns a Driver on a MySQL or MariaDB database. db may use any client whose errors
// have a field Number with the error number, as go-sql-driver's do. NewMySQL does no I/O; an
// error is about opts. The first call that uses the database checks it: Migrate must have
// prepared it.
//
// Statements must commit by themselves. A call on a connection with autocommit=0 returns
// [ErrUncommitted], and so does one on a MariaDB connection with an open transaction. MySQL does
// not report open transactions: there, a lock that is granted on such a connection ends with it.
// So an application that shares the pool must not return connections with a transaction that it
// began by a statement. Transactions of [sql.DB.BeginTx] are safe. If completion_type=CHAIN
// makes each of them leave another open, calls return [ErrUncommitted].
func NewMySQL(db *sql.DB, opts *Options) (*Driver, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if o.AllowForeign || o.Path != "" || o.Listen != nil {
		return nil, fmt.Errorf("sqllock: AllowForeign and Path are for SQLite, Listen for PostgreSQL")
	}
	m := &mysql{schema: o.Schema, table: o.Prefix + "locks", order: make(map[string][]int)}
	m.server = server{engine: "mysql", version: schemaVersion, prefix: o.tables(), codeOf: mysqlNumber, codes: mysqlCodes, alien: m.flaw, caused: mysqlCaused,
		busyCode: map[string]bool{
			"1213": true, // deadlock
			"1205": true, // the row's lock was not there in time
			"1020": true, // the row has changed since it was read
		}}
	return newDriver(db, m, &o)
}

// mysql is the dialect of MySQL 8.0.19 and later and MariaDB 10.6 and later (JSON_TABLE).
type mysql struct {
	server
	schema, table string
	order         map[string][]int // by text: which argument each ? takes; see numbered
}

// mysqlNow is the start of the statement in UTC, and stays the same during it. Local time repeats
// an hour each year. SYSDATE is local, and moves on during a statement.
const mysqlNow = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`

// mysqlCommits is 0 on a connection whose statements commit by themselves. On any other it is out
// of range (error 1690), because a lock that is granted there would end with the connection.
//
// MariaDB also reports a transaction that was left open. MySQL reports only whether each
// transaction starts another; MariaDB skips the comment that asks. A replica repeats the statement
// in a transaction, which must not fail. It runs under the server ID of its source on MariaDB, and
// without a user on MySQL.
const mysqlCommits = `IF(@@autocommit/*M! AND (NOT @@in_transaction OR @@server_id <> @@GLOBAL.server_id)*/` +
	`/*!80019 AND (@@completion_type <> 'CHAIN' OR USER() = '')*/, 0, 9223372036854775807)`

// mysqlPrimary is out of range on a read-only server, and otherwise 0. A replica may answer with
// outdated rows. An administrator may be able to write to a former primary, while others are
// granted the same lock elsewhere.
const mysqlPrimary = `IF(@@read_only NOT IN ('0', 'OFF'), ` + mysqlNotPrimary + `, 0)`

// mysqlWrites is mysqlPrimary for statements that a replica may repeat; see mysqlCommits.
const mysqlWrites = `IF(CAST(@@read_only AS CHAR) NOT IN ('0', 'OFF')/*M! AND @@server_id = @@GLOBAL.server_id*//*!80019 AND USER() <> ''*/, ` +
	mysqlNotPrimary + `, 0)`

// mysqlNotPrimary identifies mysqlPrimary in an error. MySQL names no variables there.
const mysqlNotPrimary = `9223372036854775806`

// mysqlList is a list argument as a table. It is UTF-8, whatever the connection's character set.
const mysqlList = `JSON_TABLE(CONVERT(CAST(?1 AS BINARY) USING utf8mb4), '$[*]' COLUMNS (`

// mysqlRenewals reads the list in a subquery, out of reach of FOR UPDATE. MySQL refuses to lock the
// rows of JSON_TABLE, and MariaDB has no FOR UPDATE OF.
const mysqlRenewals = `(SELECT * FROM ` + mysqlList + `
	name VARCHAR(512) CHARACTER SET utf8mb4 PATH '$.name', owner VARCHAR(255) CHARACTER SET utf8mb4 PATH '$.owner', ttl BIGINT PATH '$.ttl')) list) r
	STRAIGHT_JOIN {p}locks l ON l.name = CAST(r.name AS BINARY) AND l.owner = CAST(r.owner AS BINARY) AND l.expires > {now}`

// mysqlGiven is the same for leases that end.
const mysqlGiven = `(SELECT * FROM ` + mysqlList + `
	name VARCHAR(512) CHARACTER SET utf8mb4 PATH '$.name', owner VARCHAR(255) CHARACTER SET utf8mb4 PATH '$.owner', fence BIGINT PATH '$.fence')) list) r
	STRAIGHT_JOIN {p}locks l ON l.name = CAST(r.name AS BINARY)`

// A statement about many rows must not wait for any of them. If its caller has gone and it still
// waits, it keeps the rows locked that it has passed. MySQL skips locked rows if a subquery with a
// LIMIT locks them. MariaDB skips them there or fails at once.
const (
	mysqlAtOnce   = `/*M!100600 SET STATEMENT innodb_lock_wait_timeout = 0 FOR */ `
	mysqlUnlocked = ` LIMIT 1000000 FOR UPDATE SKIP LOCKED`
)

// mysqlWhole begins statements with mysqlView: MariaDB cuts JSON_ARRAYAGG at this length, by default
// 1 MiB. No packet is longer.
const mysqlWhole = `/*M!100600 SET STATEMENT group_concat_max_len = 1073741824 FOR */ `

// mysqlView is all places of l that count, as JSON in no order.
const mysqlView = `COALESCE((SELECT JSON_ARRAYAGG(JSON_ARRAY(p.seq, CONVERT(p.owner USING utf8mb4), p.mode, p.lim, p.wants, CONVERT(p.note USING utf8mb4), b.ends))
	FROM {p}places p JOIN {p}beats b ON b.proc = p.proc WHERE p.name = l.name AND p.seq > l.served AND ` + liveBeat + `), '[]')`

// statements returns the texts. MySQL makes assignments from left to right, each seeing those
// before it, so the columns that decide come last. The number to return goes through
// LAST_INSERT_ID, because row counts depend on the client's settings. LAST_INSERT_ID(0) undoes the
// value that VALUES has set, if nothing was done.
func (m *mysql) statements() statements {
	const free = `IF(expires <= VALUES(since) AND crowd <= VALUES(since), `
	// told is a fence, negative if others wait. The function told splits it.
	const told = `CASE WHEN EXISTS (SELECT 1 FROM {p}places p JOIN {p}beats b ON b.proc = p.proc
		WHERE p.name = l.name AND p.seq > l.served AND p.owner <> l.owner AND ` + liveBeat + `) THEN -l.fence ELSE l.fence END`
	const state = `, {floor}, CAST(n.name AS BINARY), ` + stateColumns + ` FROM ` + mysqlList + `
		name VARCHAR(512) CHARACTER SET utf8mb4 PATH '$')) n LEFT JOIN {p}locks l ON l.name = CAST(n.name AS BINARY)`
	s := statements{
		leaseTexts: leaseTexts{
			grant: `INSERT INTO {p}locks (name, fence, owner, expires, since, note, rev, crowd, record)
				VALUES (?1, LAST_INSERT_ID({floor}), ?2, {now} + ?3, {now}, ?4, {now}, 0, '` + nothing + `')
				ON DUPLICATE KEY UPDATE fence = ` + free + `LAST_INSERT_ID(GREATEST(fence + 1, raised + 1, {floor})), fence + LAST_INSERT_ID(0)),
					owner = ` + free + `VALUES(owner), owner), since = ` + free + `VALUES(since), since), note = ` + free + `VALUES(note), note),
					rev = ` + free + `rev + 1, rev), expires = ` + free + `VALUES(expires), expires)`,
			free: `UPDATE {p}locks SET rev = rev + 1, owner = '', expires = IF(?3 > 0, {now} + ?3, 0)
				WHERE name = ?1 AND owner = ?2 AND expires > {now} AND fence = ?4`,
		},
		batchTexts: batchTexts{
			grantAll: mysqlAtOnce + `UPDATE (SELECT l.name, r.owner, r.ttl, r.note FROM (SELECT * FROM ` + mysqlList + `
						name VARCHAR(512) CHARACTER SET utf8mb4 PATH '$.name', owner VARCHAR(255) CHARACTER SET utf8mb4 PATH '$.owner', ttl BIGINT PATH '$.ttl',
						note LONGTEXT CHARACTER SET utf8mb4 PATH '$.note')) list) r
					STRAIGHT_JOIN {p}locks l ON l.name = CAST(r.name AS BINARY) AND l.expires <= {now} AND l.crowd <= {now}` + mysqlUnlocked + `) r
				STRAIGHT_JOIN {p}locks l ON l.name = r.name
				SET l.fence = GREATEST(l.fence + 1, l.raised + 1, {floor}), l.owner = CAST(r.owner AS BINARY), l.since = {now},
					l.note = CAST(COALESCE(r.note, '') AS BINARY), l.rev = l.rev + 1, l.expires = LAST_INSERT_ID({now}) + r.ttl`,
			giveAll: mysqlAtOnce + `UPDATE (SELECT l.name FROM ` + mysqlGiven + ` AND l.fence = r.fence AND l.owner = CAST(r.owner AS BINARY)
						AND l.expires > {now} AND l.crowd <= {now}` + mysqlUnlocked + `) r
				STRAIGHT_JOIN {p}locks l ON l.name = r.name SET l.owner = '', l.expires = 0, l.rev = l.rev + 1`,
			// A plain read, which also sees the rows that others have locked since.
			gaveAll: `SELECT l.name, r.owner, CASE l.owner WHEN '' THEN r.fence ELSE 0 END FROM ` + mysqlGiven + ` AND l.fence = r.fence
				AND (l.owner = CAST(r.owner AS BINARY) OR l.owner = '' AND l.expires = 0) AND {now} + ` + mysqlPrimary + ` > 0`,
			renewAll: mysqlAtOnce + `UPDATE (SELECT l.name, r.ttl FROM ` + mysqlRenewals + mysqlUnlocked + `) r
				STRAIGHT_JOIN {p}locks l ON l.name = r.name SET l.rev = l.rev + 1, l.expires = GREATEST(l.expires, LAST_INSERT_ID({now}) + r.ttl)`,
			renewed: `SELECT l.name, l.owner, l.fence FROM ` + mysqlRenewals + ` AND l.expires >= ?2 + r.ttl FOR UPDATE SKIP LOCKED`, // as a locking read, a router does not send it to a replica
			unlocked: `SELECT l.name FROM (SELECT * FROM ` + mysqlList + `name VARCHAR(512) CHARACTER SET utf8mb4 PATH '$')) list) n
				STRAIGHT_JOIN {p}locks l ON l.name = CAST(n.name AS BINARY) AND {now} > 0 FOR UPDATE SKIP LOCKED`,
		},
		rowTexts: rowTexts{
			save: `UPDATE {p}locks SET fence = ?2, owner = ?3, expires = ?4, since = ?5, note = ?6, crowd = ?7, record = ?8, served = ?9,
					rev = LAST_INSERT_ID(rev + 1)
				WHERE name = ?1 AND rev = ?10 AND {now} > 0`,
			raise: `INSERT INTO {p}locks (name, fence, owner, expires, since, note, rev, crowd, record, raised)
				VALUES (?, 0, '', 0, 0, '', {now}, 0, '` + nothing + `', ?)
				ON DUPLICATE KEY UPDATE raised = GREATEST(raised, VALUES(raised)), rev = rev + 1`,
			state: strings.ReplaceAll(`SELECT {now} + `+mysqlPrimary+state, "{places}", "''"), // MariaDB has no query for the first places of each
			show:  mysqlWhole + `SELECT {now}` + state,
			list: mysqlWhole + `SELECT {now}, {floor}, l.name, ` + stateColumns + ` FROM {p}locks l
				WHERE l.name >= ? AND (l.expires > {now} OR l.crowd > {now}) ORDER BY l.name LIMIT ?`,
		},
		placeTexts: placeTexts{
			// It reads no other row, so it waits for nobody. If the clock was set back, the order
			// is not kept.
			insert: `INSERT INTO {p}places (name, seq, owner, proc, mode, lim, wants, note) VALUES (?1, GREATEST({now}, ?8), ?2, ?3, ?4, ?5, ?6, ?7)
				ON DUPLICATE KEY UPDATE seq = IF(seq >= ?8, seq, VALUES(seq)), proc = VALUES(proc)`,
			first: `SELECT p.seq, p.owner, p.mode, p.lim, p.wants, p.note, b.ends FROM {p}places p FORCE INDEX (PRIMARY) STRAIGHT_JOIN {p}beats b ON b.proc = p.proc
				WHERE p.name = ? AND p.seq > ? AND ` + liveBeat + ` ORDER BY p.seq LIMIT ` + strconv.Itoa(inView),
			leave: `DELETE FROM {p}places WHERE name = ?1 AND owner = ?2 AND {now} > 0`,
			remove: `DELETE p FROM (SELECT * FROM ` + strings.Replace(mysqlList, "?1", "?2", 1) + `
				name VARCHAR(512) CHARACTER SET utf8mb4 PATH '$.name', owner VARCHAR(255) CHARACTER SET utf8mb4 PATH '$.owner', seq BIGINT PATH '$.seq')) list) r
				STRAIGHT_JOIN {p}places p FORCE INDEX (owners) ON p.name = CAST(r.name AS BINARY) AND p.owner = CAST(r.owner AS BINARY) AND p.seq = r.seq WHERE p.proc = ?1 AND {now} > 0`,
			beat: `INSERT INTO {p}beats (proc, ends, number) VALUES (?1, {now} + ?2, ?3)
				ON DUPLICATE KEY UPDATE ends = VALUES(ends), number = VALUES(number)`,
			unbeat: `DELETE FROM {p}beats WHERE proc = ?1 AND {now} > 0`,
			mine: `SELECT p.name, p.owner, p.seq, p.seq <= COALESCE(l.served, 0), COALESCE(l.fence, 0), CASE l.owner WHEN p.owner THEN l.expires - {now} ELSE 0 END,
				COALESCE(l.crowd, 0) - ({now} + ` + mysqlPrimary + `) FROM {p}places p LEFT JOIN {p}locks l ON l.name = p.name WHERE p.proc = ?`,
			// By name: a scan of few rows would meet those that others have locked.
			extend: mysqlAtOnce + `UPDATE (SELECT l.name FROM (SELECT * FROM ` + mysqlList + `name VARCHAR(512) CHARACTER SET utf8mb4 PATH '$')) list) n
				STRAIGHT_JOIN {p}locks l FORCE INDEX (PRIMARY) ON l.name = CAST(n.name AS BINARY) AND l.crowd < {now} + ?2 DIV 2` + mysqlUnlocked + `) r
				STRAIGHT_JOIN {p}locks l FORCE INDEX (PRIMARY) ON l.name = r.name SET l.crowd = {now} + ?2, l.rev = l.rev + 1`, // rev: a caller that has read the row must read it again
			dead: `DELETE FROM {p}beats WHERE ends < {now} - ?1`,
			bury: `DELETE p FROM {p}places p LEFT JOIN {p}beats b ON b.proc = p.proc WHERE b.proc IS NULL AND {now} > 0`,
		},
		idleTexts: idleTexts{
			idle: `SELECT name FROM {p}locks l WHERE name > ? AND ` + idleRow + ` ORDER BY name LIMIT ` + purgeAtOnce,
			// By name: a scan would lock every row that it passes.
			purge: mysqlAtOnce + `DELETE l FROM (SELECT l.name FROM (SELECT * FROM ` + mysqlList + `name VARCHAR(512) CHARACTER SET utf8mb4 PATH '$')) list) n
				STRAIGHT_JOIN {p}locks l ON l.name = CAST(n.name AS BINARY)` + mysqlUnlocked + `) n
				STRAIGHT_JOIN {p}locks l ON l.name = n.name WHERE ` + idleRow,
		},
	}
	s.asking.renewed = strings.Replace(s.renewed, "l.fence", told, 1)
	const now = "(" + mysqlNow + " + " + mysqlCommits + ")"
	for _, text := range []*string{&s.grant, &s.grantAll, &s.giveAll, &s.renewAll, &s.free, &s.save, &s.raise, &s.insert, &s.leave, &s.remove,
		&s.beat, &s.unbeat, &s.extend, &s.dead, &s.bury} {
		*text = strings.ReplaceAll(*text, "{now}", "("+now+" + "+mysqlWrites+")") // now comes first: its error differs from the other
	}
	put := strings.NewReplacer("{now}", now, "{floor}", mysqlNow, "{p}", m.prefix, "{life}", placeMicros)
	s.each(func(text *string) {
		*text = strings.ReplaceAll(*text, "{places}", mysqlView)
		positional, order := numbered(put.Replace(*text))
		*text, m.order[positional], m.order[m.inside(positional)] = positional, order, order
	})
	return s
}

func (*mysql) inside(text string) string { return strings.ReplaceAll(text, mysqlCommits, "0") }

// numbered replaces ?1, ?2 and so on by MySQL's ?, and returns the numbers, counted from 0.
func numbered(text string) (positional string, order []int) {
	positional = argument.ReplaceAllStringFunc(text, func(arg string) string {
		n, _ := strconv.Atoi(arg[1:]) // it consists of digits
		order = append(order, n-1)
		return "?"
	})
	return positional, order
}

var argument = regexp.MustCompile(`\?[0-9]+`)

// traits implements dialect. Statements are prepared, because the client would otherwise prepare
// each one each time.
func (*mysql) traits() traits {
	return traits{engine: "mysql", prepares: true, attempts: maxAttempts, fence: fence.MySQL, pace: serverPace}
}

func (m *mysql) number(ctx context.Context, on runner, text string, args ...any) (int64, bool, error) {
	res, err := on.ExecContext(ctx, text, m.arrange(text, args)...)
	if err != nil {
		return 0, false, err
	}
	n, err := res.LastInsertId()
	return n, n != 0, err
}

func (m *mysql) changed(ctx context.Context, on runner, text string, args ...any) (bool, error) {
	n, err := written(ctx, on, text, m.arrange(text, args)...)
	return n > 0, err
}

// arrange returns the arguments in the order in which the text takes them.
func (m *mysql) arrange(text string, args []any) []any {
	arranged := make([]any, len(m.order[text]))
	for i, n := range m.order[text] {
		arranged[i] = args[n]
	}
	return arranged
}

// create creates the tables one by one, because MySQL cannot do so in a transaction.
func (m *mysql) create(ctx context.Context, d *Driver) error {
	return d.write(ctx, nil, func(runner) error {
		version, err := m.recognize(ctx, d.db)
		if err != nil || version == schemaVersion {
			return err
		}
		var none any
		err = d.db.QueryRowContext(ctx, strings.ReplaceAll(probe, "{p}", m.prefix)).Scan(&none)
		if err != nil && !errors.Is(m.explain(err), ErrNoSchema) && !errors.Is(err, sql.ErrNoRows) {
			return err // for example, a table of another program
		}
		schema := mysqlSchema3
		if version == 0 {
			schema = mysqlSchema + schema
		}
		return m.alter(ctx, d.db, schema)
	})
}

// alter changes the tables. It waits at most a second for transactions that have read them, because
// all other statements queue behind it.
func (m *mysql) alter(ctx context.Context, db *sql.DB, schema string) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "SET SESSION lock_wait_timeout = 1"); err != nil {
		return err
	}
	err = run(ctx, adding{conn}, schema, m.prefix)
	soon, stop := context.WithTimeout(context.WithoutCancel(ctx), beatWithin)
	defer stop()
	_, _ = conn.ExecContext(soon, "SET SESSION lock_wait_timeout = DEFAULT") // if it fails, this connection's waits stay shorter
	return err
}

// adding ignores the error of adding a column that another process has added.
type adding struct{ runner }

func (a adding) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	r, err := a.runner.ExecContext(ctx, text, args...)
	if mysqlNumber(err) == "1060" { // duplicate column name
		err = nil
	}
	return r, err
}

// flaw finds settings of the table that would make different names equal, or lose writes.
func (m *mysql) flaw(ctx context.Context, q querier) (string, error) {
	var kind, engine string
	var autocommit bool
	err := q.QueryRowContext(ctx, `SELECT c.data_type, t.engine, @@autocommit FROM information_schema.columns c
		JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name
		WHERE c.table_schema = COALESCE(NULLIF('`+m.schema+`', ''), DATABASE()) AND c.table_name = '`+m.table+`' AND c.column_name = 'name'`,
	).Scan(&kind, &engine, &autocommit)
	switch {
	case err != nil:
		return "", err
	case !autocommit:
		return "", ErrUncommitted
	case kind != "varbinary":
		return fmt.Sprintf("the column of names is a %s, whose collation takes different names for the same: it must be a varbinary", kind), nil
	case !strings.EqualFold(engine, "InnoDB"):
		return fmt.Sprintf("the table of locks has the engine %s and needs InnoDB", engine), nil
	}
	return "", nil
}

// mysqlCodes are numbers of errors; see the error references of MySQL and MariaDB.
var mysqlCodes = map[string]error{
	"1290": ErrReadOnly,       // --read-only
	"1792": ErrReadOnly,       // a read-only transaction
	"1836": ErrReadOnly,       // the server is in read-only mode
	"1146": ErrNoSchema,       // no such table
	"1045": ErrAuth,           // name or password
	"1130": ErrAuth,           // for this host
	"1698": ErrAuth,           // the account's plugin did not authenticate the user
	"3118": ErrAuth,           // MySQL: the account is locked
	"4151": ErrAuth,           // MariaDB: the account is locked
	"1142": ErrDenied,         // on the table
	"1143": ErrDenied,         // on a column
	"1044": ErrDenied,         // on the database
	"1227": ErrDenied,         // for the statement
	"3":    ErrFull,           // error writing a file
	"1021": ErrFull,           // disk full
	"1026": ErrFull,           // error writing a file
	"1114": ErrFull,           // table full
	"1040": ErrConnections,    // too many connections
	"1203": ErrConnections,    // too many connections of the user
	"1969": ErrTimeout,        // max_statement_time of MariaDB
	"3024": ErrTimeout,        // max_execution_time of MySQL
	"1317": ErrTimeout,        // interrupted, as by KILL QUERY
	"1243": ErrPooled,         // unknown prepared statement
	"1054": driver.ErrCorrupt, // unknown column
	"1136": driver.ErrCorrupt, // another number of columns
	"1364": driver.ErrCorrupt, // a column without a default
	"1406": driver.ErrCorrupt, // a column that is too short
	"126":  driver.ErrCorrupt, // index file is crashed
	"1194": driver.ErrCorrupt, // table is crashed
	"1712": driver.ErrCorrupt, // index is corrupted
}

// mysqlCaused distinguishes mysqlPrimary from mysqlCommits, which cause the same error: the server
// quotes the value that is out of range.
func mysqlCaused(code string, err error) error {
	switch {
	case code != "1690":
		return nil
	case strings.Contains(err.Error(), mysqlNotPrimary):
		return ErrReadOnly
	}
	return ErrUncommitted
}

// mysqlNumber returns the number of a client's error, or "". It does not import the error's type,
// because the program chooses the client.
func mysqlNumber(err error) string {
	if err == nil {
		return ""
	}
	if v := reflect.Indirect(reflect.ValueOf(err)); v.Kind() == reflect.Struct {
		if n := v.FieldByName("Number"); n.IsValid() && n.CanUint() {
			return strconv.FormatUint(n.Uint(), 10)
		}
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			if n := mysqlNumber(one); n != "" {
				return n
			}
		}
	}
	return mysqlNumber(errors.Unwrap(err))
}
