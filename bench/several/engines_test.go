package several_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	_ "modernc.org/sqlite"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/engine/pglisten"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// ttl of all leases.
const ttl = 2 * time.Second

// An engine is started once; open is also called in other processes, with its address.
type engine struct {
	name  string
	start func(b *testing.B) (addr string)
	open  func(addr string) (driver.Driver, error)
}

var engines = []engine{
	{"SQLite", startSQLite, func(addr string) (driver.Driver, error) { return openSQL("sqlite", addr, sqllock.NewSQLite) }},
	{"Redis", func(b *testing.B) string { return servers.StartRedis(b).Addr() }, openRedis},
	{"Redlock", startRedlock, openRedlock},
	{"PostgreSQL", startPostgres, openPostgres},
	{"MariaDB", startMariaDB, func(addr string) (driver.Driver, error) { return openSQL("mysql", addr, sqllock.NewMySQL) }},
	{"ZooKeeper", func(b *testing.B) string { return servers.StartZooKeeper(b, servers.ZooKeeperOptions{}).Addr() }, openZooKeeper},
	{"etcd", func(b *testing.B) string { return servers.StartEtcd(b, servers.EtcdCurrent).Addr() }, openEtcd},
}

func find(name string) (engine, error) {
	for _, e := range engines {
		if e.name == name {
			return e, nil
		}
	}
	return engine{}, fmt.Errorf("no engine %q", name)
}

func openSQL(client, dsn string, open func(*sql.DB, *sqllock.Options) (*sqllock.Driver, error)) (*sqllock.Driver, error) {
	db, err := sql.Open(client, dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxIdleConns(16)
	return open(db, nil)
}

// migrated prepares the tables of an engine that has some.
func migrated(b *testing.B, d driver.Driver, err error) {
	b.Helper()
	if err == nil {
		err = d.(*sqllock.Driver).Migrate(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
	d.Close()
}

func startSQLite(b *testing.B) string {
	path := filepath.Join(b.TempDir(), "locks.db")
	d, err := openSQL("sqlite", path, sqllock.NewSQLite)
	migrated(b, d, err)
	return path
}

func startPostgres(b *testing.B) string {
	addr := servers.StartPostgres(b).URL()
	d, err := openPostgres(addr)
	migrated(b, d, err)
	return addr
}

func openPostgres(addr string) (driver.Driver, error) {
	listener, err := pglisten.New(addr)
	if err != nil {
		return nil, err
	}
	return openSQL("pgx", addr, func(db *sql.DB, _ *sqllock.Options) (*sqllock.Driver, error) {
		return sqllock.NewPostgres(db, &sqllock.Options{Listen: listener})
	})
}

func startMariaDB(b *testing.B) string {
	addr := servers.StartMariaDB(b).DSN()
	d, err := openSQL("mysql", addr, sqllock.NewMySQL)
	migrated(b, d, err)
	return addr
}

func openRedis(addr string) (driver.Driver, error) {
	return redislock.Open(&redis.Options{Addr: addr}, nil)
}

func startRedlock(b *testing.B) string {
	var addrs []string
	for range 3 {
		addrs = append(addrs, servers.StartRedis(b).Addr())
	}
	return strings.Join(addrs, ",")
}

func openRedlock(addr string) (driver.Driver, error) {
	var clients []redis.UniversalClient
	for _, a := range strings.Split(addr, ",") {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: a, PoolSize: 40}))
	}
	// These servers forget nothing, and none hangs: a busy machine only looks like it.
	return redislock.NewRedlock(clients, &redislock.Options{NoMinUptime: true}, &quorum.Options{NodeTimeout: ttl / 4})
}

func openZooKeeper(addr string) (driver.Driver, error) {
	return zklock.New([]string{addr}, &zklock.Options{SessionTimeout: ttl * 3 / 2})
}

func openEtcd(addr string) (driver.Driver, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	return etcdlock.New(client, nil)
}
