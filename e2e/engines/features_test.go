// Package engines looks at all engines side by side: what their drivers declare, which functions a
// call passes, what their types print, and what each store has in place of a lock.
package engines

import (
	"cmp"
	"database/sql"
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"
	_ "modernc.org/sqlite"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/engine/kubelock"
	"github.com/leasehold-go/leasehold/engine/memcachelock"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/engine/s3lock"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/table"
	"github.com/leasehold-go/leasehold/memory"
)

var update = flag.Bool("update", false, "write the tables into docs/choosing.md and docs/walk.md")

// The table of docs/choosing.md is written from what the drivers declare. None of them needs a server
// for that.
func TestChoosingHasTheFeatures(t *testing.T) {
	table.Check(t, "../../docs/choosing.md", "features: written by e2e/engines", features(t), *update)
}

// features is the table of all engines.
func features(t *testing.T) string {
	b := &strings.Builder{}
	b.WriteString("| engine | fencing | shared | weights | `SetLimit` | fair | wakes | recalls | `Keep` | resumes | `AtLeast` | `ls`, `show`, `evict` | shortest TTL | in steps of |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, engine := range []struct {
		name string
		open func() (driver.Driver, error)
	}{
		{"memory", func() (driver.Driver, error) { return memory.New(), nil }},
		{"SQLite", onSQL(t, "sqlite", "file:none", sqllock.NewSQLite)},
		{"PostgreSQL", onSQL(t, "pgx", "postgres://127.0.0.1:1/none", sqllock.NewPostgres)},
		{"MySQL, MariaDB", onSQL(t, "mysql", "tcp(127.0.0.1:1)/none", sqllock.NewMySQL)},
		{"Redis", func() (driver.Driver, error) { return redislock.New(redisClient(t), nil) }},
		{"Redlock", func() (driver.Driver, error) {
			return redislock.NewRedlock([]redis.UniversalClient{redisClient(t), redisClient(t), redisClient(t)}, nil, nil)
		}},
		{"ZooKeeper", func() (driver.Driver, error) { return zklock.New([]string{"127.0.0.1:1"}, nil) }},
		{"etcd", func() (driver.Driver, error) {
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}})
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { client.Close() })
			return etcdlock.New(client, nil)
		}},
		{"NATS", func() (driver.Driver, error) { return natslock.New(nil, "none", nil) }},
		{"S3", func() (driver.Driver, error) { return s3lock.New(nil, "none", nil) }},
		{"Kubernetes", func() (driver.Driver, error) { return kubelock.New(&rest.Config{}, "none", nil) }},
		{"memcached", func() (driver.Driver, error) { return memcachelock.New([]string{"127.0.0.1:1"}, nil) }},
	} {
		d, err := engine.open()
		if err != nil {
			t.Fatalf("%s: %v", engine.name, err)
		}
		b.WriteString("| " + engine.name + " | " + strings.Join(row(t, d), " | ") + " |\n")
		if err := d.Close(); err != nil {
			t.Errorf("close %s: %v", engine.name, err)
		}
	}
	return b.String()
}

// row is what one driver declares.
func row(t *testing.T, d driver.Driver) []string {
	f := d.Features()
	if !regexp.MustCompile(`^[a-z0-9]+$`).MatchString(f.Engine) {
		t.Errorf("%T names its engine %q: no word in lower case", d, f.Engine)
	}
	_, operates := d.(driver.Operator)
	shortest, step := f.MinTTL.String(), cmp.Or(f.Step, time.Nanosecond).String()
	if f.SessionTTL > 0 {
		shortest, step = f.SessionTTL.String()+", as its session gives", "–"
	}
	recalls := yes(f.Tells)
	if f.Tells && !f.Recalls {
		recalls = "slow"
	}
	return []string{
		yes(f.Fencing), yes(f.Shared), yes(f.Weights), yes(f.Limits), yes(f.Fair), yes(f.Wakes), recalls, yes(f.Keeps),
		yes(f.Resumes), yes(f.Lingers), yes(operates), shortest, step,
	}
}

func yes(has bool) string {
	if has {
		return "yes"
	}
	return "no"
}

func onSQL(t *testing.T, client, dsn string, open func(*sql.DB, *sqllock.Options) (*sqllock.Driver, error)) func() (driver.Driver, error) {
	return func() (driver.Driver, error) {
		db, err := sql.Open(client, dsn)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", client, err)
		}
		t.Cleanup(func() { db.Close() })
		return open(db, nil)
	}
}

func redisClient(t *testing.T) redis.UniversalClient {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { client.Close() })
	return client
}
