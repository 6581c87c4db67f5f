package sqllock

import (
	"context"
	"database/sql"
	"strconv"

	"github.com/leasehold-go/leasehold/driver"
)

// oldestPostgres is the oldest version that runs the statements. Source: docs/engines/postgres.md.
const oldestPostgres = 12_00_00

// look implements dialect.
func (p *postgres) look(ctx context.Context, db *sql.DB) ([]driver.Finding, error) {
	s, err := readSettings(ctx, db, `SELECT name, setting FROM pg_settings WHERE name IN ('server_version', 'server_version_num',
			'default_transaction_isolation', 'transaction_read_only', 'synchronous_standby_names', 'synchronous_commit', 'fsync')
		UNION ALL SELECT 'recovery', CASE WHEN pg_is_in_recovery() THEN 'on' ELSE 'off' END
		UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication`)
	if err != nil {
		return nil, err
	}
	version := driver.Finding{About: driver.AboutVersion, Text: "PostgreSQL " + s["server_version"]}
	if n, err := strconv.Atoi(s["server_version_num"]); err == nil && n < oldestPostgres {
		version.Level, version.Advice = driver.Unfit, "update it: 12 or newer is needed"
	}
	now, err := clock(ctx, db, "SELECT "+pgFloor)
	return []driver.Finding{version, s.postgresDurability(), s.postgresReplicas(), isolation(s["default_transaction_isolation"]), now}, err
}

// creates implements dialect. On a standby no transaction can create tables; look reports that.
func (p *postgres) creates(ctx context.Context, db *sql.DB) (may, known bool, err error) {
	err = db.QueryRowContext(ctx, `SELECT coalesce(has_schema_privilege(to_regnamespace(quote_ident(coalesce(nullif($1, ''), current_schema())))::oid, 'CREATE'), false)`,
		p.schema).Scan(&may)
	return may, true, err
}

func (s settings) postgresDurability() driver.Finding {
	f := driver.Finding{About: driver.AboutPersistence, Text: "what is committed survives a crash"}
	for _, name := range []string{"fsync", "synchronous_commit"} {
		if s[name] == "off" {
			f.Level, f.Advice = driver.Weak, "switch it on"
			f.Text = name + " is off: a crash forgets the last leases, and lets a second holder in"
			break
		}
	}
	return f
}

func (s settings) postgresReplicas() driver.Finding {
	f := driver.Finding{About: driver.AboutReplicas, Text: "no standby"}
	switch {
	case s.on("recovery") || s.on("transaction_read_only"):
		f.Level, f.Advice = driver.Unfit, "connect to the primary"
		f.Text = "the database is read-only, as a standby is"
	case s["standbys"] != "0" && s["synchronous_standby_names"] == "":
		f.Level, f.Advice = driver.Weak, "set synchronous_standby_names"
		f.Text = s["standbys"] + " standbys, none of them synchronous: a failover may let a second holder in"
	case s["synchronous_standby_names"] != "":
		f.Text = "standbys are synchronous: " + s["synchronous_standby_names"]
	}
	return f
}
