package migrate

import (
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	_ "modernc.org/sqlite"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/servers"
)

func acquireStock(t *testing.T, d driver.Driver, err error) *leasehold.Lease {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	locks, err := leasehold.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close() })
	lease, err := locks.Acquire(t.Context(), "stock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lease.Release(t.Context()) })
	return lease
}

// A guarded resource moves from one engine to another. Tokens of Redis are microseconds, and those of a new etcd begin at 1.
// While programs move one after the other, both engines may grant the lock. The resource then accepts only the later epoch.
func TestFromRedisToEtcd(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: servers.StartRedis(t).Addr()})
	defer client.Close()
	onRedis, err := redislock.New(client, nil)
	former := acquireStock(t, onRedis, err)
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{servers.StartEtcd(t, servers.EtcdCurrent).Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	onEtcd, err := etcdlock.New(etcd, nil)
	present := acquireStock(t, onEtcd, err)
	if present.Token() >= former.Token() {
		t.Fatalf("token %d on etcd, %d on Redis", present.Token(), former.Token())
	}

	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "stock.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	guard, err := fence.NewSQL(fence.SQLite, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	write := func(lease fence.Lease) error {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback() // does nothing after Commit
		if err := guard.Check(t.Context(), tx, lease); err != nil {
			return err
		}
		return tx.Commit()
	}
	for _, step := range []struct {
		what   string
		lease  fence.Lease
		passes bool
	}{
		{"the holder on Redis", former, true},
		{"a holder on etcd who forgets the epoch", present, false},
		{"the holder on etcd", fence.InEpoch(present, 1), true},
		{"the late holder on Redis", former, false},
		{"the holder on etcd again", fence.InEpoch(present, 1), true},
		{"a later grant of Redis", fence.LeaseOf("stock", former.Token()+driver.FenceStep, "later"), false},
	} {
		if err := write(step.lease); (err == nil) != step.passes || err != nil && !errors.Is(err, fence.ErrStale) {
			t.Errorf("%s: %v", step.what, err)
		}
	}
}
