package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
)

// look implements dialect. A user that may not see other connections gets no finding about
// replicas.
func (m *mysql) look(ctx context.Context, db *sql.DB) ([]driver.Finding, error) {
	s, err := readSettings(ctx, db, `SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'version_comment', 'transaction_isolation', 'tx_isolation',
		'innodb_flush_log_at_trx_commit', 'read_only', 'super_read_only', 'wsrep_on')`)
	if err != nil {
		return nil, err
	}
	replication, err := readSettings(ctx, db, `SHOW GLOBAL STATUS WHERE Variable_name IN ('Rpl_semi_sync_source_status', 'Rpl_semi_sync_master_status')`)
	if err != nil {
		return nil, err
	}
	var replicas int
	err = db.QueryRowContext(ctx, `SELECT count(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'`).Scan(&replicas)
	if err != nil {
		return nil, err
	}
	now, err := clock(ctx, db, "SELECT "+mysqlNow)
	return []driver.Finding{s.mysqlVersion(), s.mysqlDurability(),
		s.mysqlReplicas(replicas, replication.on("rpl_semi_sync_source_status") || replication.on("rpl_semi_sync_master_status")),
		isolation(cmp.Or(s["transaction_isolation"], s["tx_isolation"])), now}, err
}

// creates implements dialect. It does not know rights that come from a role.
func (m *mysql) creates(ctx context.Context, db *sql.DB) (may, known bool, err error) {
	err = db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM information_schema.user_privileges WHERE privilege_type = 'CREATE')
		OR EXISTS (SELECT 1 FROM information_schema.schema_privileges
			WHERE privilege_type = 'CREATE' AND COALESCE(NULLIF(?, ''), DATABASE()) LIKE table_schema),
		COALESCE(CURRENT_ROLE(), 'NONE') = 'NONE'`, m.schema).Scan(&may, &known)
	return may, known || may, err
}

// mysqlVersion refuses servers without JSON_TABLE, or without rows in VALUES.
func (s settings) mysqlVersion() driver.Finding {
	version := s["version"]
	maria := strings.Contains(version, "MariaDB")
	f := driver.Finding{About: driver.AboutVersion, Text: "MySQL " + version}
	oldest := [3]int{8, 0, 19}
	if maria {
		f.Text, oldest = version, [3]int{10, 6, 0}
	}
	var is [3]int
	if n, _ := fmt.Sscanf(version, "%d.%d.%d", &is[0], &is[1], &is[2]); n == 3 && slices.Compare(is[:], oldest[:]) < 0 {
		f.Level, f.Advice = driver.Unfit, fmt.Sprintf("update it: %d.%d.%d or newer is needed", oldest[0], oldest[1], oldest[2])
	}
	return f
}

func (s settings) mysqlDurability() driver.Finding {
	f := driver.Finding{About: driver.AboutPersistence, Text: "what is committed survives a crash"}
	if flush := s["innodb_flush_log_at_trx_commit"]; flush != "1" {
		f.Level, f.Advice = driver.Weak, "set it to 1"
		f.Text = "innodb_flush_log_at_trx_commit is " + flush + ": a crash forgets the last leases, and lets a second holder in"
	}
	return f
}

func (s settings) mysqlReplicas(replicas int, semisync bool) driver.Finding {
	f := driver.Finding{About: driver.AboutReplicas, Text: "no replica is seen"}
	switch {
	case s.on("read_only") || s.on("super_read_only"):
		f.Level, f.Advice = driver.Unfit, "connect to the primary"
		f.Text = "the server is read-only, as a replica is"
	case s.on("wsrep_on"):
		f.Level, f.Advice = driver.Weak, "have all processes use one node, and see docs/engines/mysql.md"
		f.Text = "it is a node of a Galera cluster: two nodes may both grant a lock"
	case replicas > 0 && !semisync:
		f.Level, f.Advice = driver.Weak, "replicate semi-synchronously"
		f.Text = fmt.Sprintf("%d replicas follow later: a failover may let a second holder in", replicas)
	case replicas > 0:
		f.Text = fmt.Sprintf("%d replicas, semi-synchronous", replicas)
	}
	return f
}
