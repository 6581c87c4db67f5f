package growth_test

import (
	"database/sql"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// An engine is what is measured.
type engine struct {
	name   string
	fair   bool
	most   float64 // goal: a turn with the largest crowd, times one with the smallest
	lasts  float64 // how long the lease of a dead process lasts, times its TTL; 0: 1
	crowds []int
	peers  []string // of testdata/peers
	start  func(b *testing.B) store
}

// A store is a server that runs.
type store struct {
	url    string
	pid    int                       // 0: there is no server
	writes func(tb testing.TB) int64 // how many there have been; nil: nobody counts
	late   time.Duration             // after how long all of them are counted
}

var (
	usual = []int{10, 100, 1000}
	many  = []int{10, 100, 1000, 10000}
	some  = []int{10, 50, 200}
	few   = []int{10, 50}
)

var engines = []engine{
	{name: "Redis", fair: true, most: 3, crowds: many, peers: []string{"rueidislock"}, start: startRedis},
	{name: "PostgreSQL", fair: true, most: 3, crowds: usual, start: startPostgres},
	{name: "MySQL", fair: true, most: 3, crowds: usual, start: func(b *testing.B) store { return startMySQL(b, servers.StartMySQL(b)) }},
	{name: "MariaDB", fair: true, most: 3, crowds: usual, start: func(b *testing.B) store { return startMySQL(b, servers.StartMariaDB(b)) }},
	{name: "SQLite", fair: true, most: 3, crowds: usual, start: startSQLite},
	{name: "NATS", fair: true, most: 3, crowds: usual, start: startNATS},
	{name: "etcd", fair: true, most: 3, crowds: usual, peers: []string{"concurrency"}, start: startEtcd},
	{name: "ZooKeeper", fair: true, most: 3, crowds: usual, peers: []string{"zk.Lock"}, lasts: 1.5, start: startZooKeeper},
	{name: "Kubernetes", most: 20, crowds: some, start: startKubernetes},
	{name: "S3", most: 20, crowds: few, start: startS3},
}

func startRedis(b *testing.B) store {
	r := servers.StartRedis(b)
	contest.Server("redis " + strings.TrimSpace(r.Must(b, "lolwut", "version", "0")))
	return store{url: "redis://" + r.Addr() + "/0", pid: r.Pid(), writes: func(tb testing.TB) int64 {
		for line := range strings.Lines(r.Must(tb, "info", "persistence")) {
			if n, ok := strings.CutPrefix(strings.TrimSpace(line), "rdb_changes_since_last_save:"); ok {
				return number(tb, n, 10)
			}
		}
		tb.Fatal("Redis does not tell its changes")
		return 0
	}}
}

func startPostgres(b *testing.B) store {
	p := servers.StartPostgres(b, "max_connections=500")
	db := open(b, "pgx", p.URL())
	contest.Server("PostgreSQL " + ask(b, db, "SHOW server_version"))
	// A backend that goes idle tells what it wrote ten seconds later (PGSTAT_IDLE_INTERVAL).
	return store{url: p.URL(), pid: p.Pid(), late: 11 * time.Second, writes: func(tb testing.TB) int64 {
		return number(tb, ask(tb, db, `SELECT tup_inserted + tup_updated + tup_deleted FROM pg_stat_database WHERE datname = current_database()`), 10)
	}}
}

func startMySQL(b *testing.B, m *servers.MySQL) store {
	db := open(b, "mysql", m.DSN())
	version := ask(b, db, "SELECT version()")
	contest.Server("MySQL " + version)
	counted := `'Innodb_rows_inserted', 'Innodb_rows_updated', 'Innodb_rows_deleted'`
	if strings.Contains(version, "MariaDB") { // where those are not counted; MySQL counts temporary tables in these
		counted = `'Handler_write', 'Handler_update', 'Handler_delete'`
	}
	return store{url: "mysql://root@" + m.Addr() + "/locks", pid: m.Pid(), writes: func(tb testing.TB) (sum int64) {
		rows, err := db.Query(`SHOW GLOBAL STATUS WHERE Variable_name IN (` + counted + `)`)
		if err != nil {
			tb.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var name, n string
			if err := rows.Scan(&name, &n); err != nil {
				tb.Fatal(err)
			}
			sum += number(tb, n, 10)
		}
		return sum
	}}
}

func startSQLite(b *testing.B) store {
	return store{url: "sqlite:" + filepath.Join(servers.DataDir(b), "locks.db")}
}

func startNATS(b *testing.B) store {
	s := servers.StartNATS(b, 1, "")[0]
	return store{url: "nats://" + s.Addr() + "/locks", pid: s.Pid(), writes: func(tb testing.TB) (sum int64) {
		var found struct {
			Accounts []struct {
				Streams []struct {
					State struct {
						Messages uint64
						Last     int64 `json:"last_seq"`
						First    int64 `json:"first_seq"`
					}
				} `json:"stream_detail"`
			} `json:"account_details"`
		}
		if err := json.Unmarshal(get(tb, "http://"+s.Monitor()+"/jsz?streams=true"), &found); err != nil {
			tb.Fatal(err)
		}
		for _, account := range found.Accounts {
			for _, stream := range account.Streams {
				sum += stream.State.Last
			}
		}
		return sum
	}}
}

func startEtcd(b *testing.B) store {
	e := servers.StartEtcd(b, servers.EtcdCurrent)
	contest.Server("etcd " + servers.EtcdCurrent)
	return store{url: "etcd://" + e.Addr(), pid: e.Pid(), writes: func(tb testing.TB) int64 {
		var found []struct {
			Status struct{ Header struct{ Revision int64 } }
		}
		if err := json.Unmarshal([]byte(e.Etcdctl(tb, "endpoint", "status", "-w", "json")), &found); err != nil {
			tb.Fatal(err)
		}
		return found[0].Status.Header.Revision
	}}
}

func startZooKeeper(b *testing.B) store {
	z := servers.StartZooKeeper(b, servers.ZooKeeperOptions{})
	return store{url: "zookeeper://" + z.Addr(), pid: z.Pid(), writes: func(tb testing.TB) int64 {
		told, err := z.Ask("srvr")
		if err != nil {
			tb.Fatal(err)
		}
		for line := range strings.Lines(told) {
			if id, ok := strings.CutPrefix(line, "Zxid: 0x"); ok {
				return number(tb, strings.TrimSpace(id), 16)
			}
		}
		tb.Fatalf("ZooKeeper says %q", told)
		return 0
	}}
}

func startKubernetes(b *testing.B) store {
	k := servers.StartKubernetes(b)
	k.AddNamespace("crowds")
	return store{url: k.URL("crowds")}
}

func startS3(b *testing.B) store {
	s := servers.StartS3(b)
	return store{url: s.URL("locks")}
}

func open(b *testing.B, driver, dsn string) *sql.DB {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	return db
}

func ask(tb testing.TB, db *sql.DB, query string) (answer string) {
	tb.Helper()
	if err := db.QueryRow(query).Scan(&answer); err != nil {
		tb.Fatal(err)
	}
	return answer
}

func number(tb testing.TB, text string, base int) int64 {
	tb.Helper()
	n, err := strconv.ParseInt(text, base, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func get(tb testing.TB, url string) []byte {
	tb.Helper()
	resp, err := http.Get(url)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return text
}
