package engines

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// What docs/choosing.md recommends in place of a lock: writes that the store refuses when somebody
// else was first. Many buyers want few pieces, on each store.
const buyers, pieces = 40, 7

// sell has the buyers come at once; each gets one piece at most.
func sell(t *testing.T, buy func(ctx context.Context) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var sold atomic.Int32
	var all sync.WaitGroup
	for range buyers {
		all.Go(func() {
			got, err := buy(ctx)
			if err != nil {
				t.Errorf("buy: %v", err)
			}
			if got {
				sold.Add(1)
			}
		})
	}
	all.Wait()
	if n := sold.Load(); n != pieces {
		t.Errorf("%d of %d pieces were sold", n, pieces)
	}
}

// One statement, which takes effect only while there is something left.
func TestConditionalUpdate(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("pgx", servers.StartPostgres(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(8)
	for _, text := range []string{"CREATE TABLE stock (id int PRIMARY KEY, pieces int)", fmt.Sprintf("INSERT INTO stock VALUES (1, %d)", pieces)} {
		if _, err := db.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	sell(t, func(ctx context.Context) (bool, error) {
		done, err := db.ExecContext(ctx, "UPDATE stock SET pieces = pieces - 1 WHERE id = $1 AND pieces > 0", 1)
		if err != nil {
			return false, err
		}
		n, err := done.RowsAffected()
		return n == 1, err
	})
}

// WATCH, MULTI, EXEC: the write is refused when the key has changed since it was read.
func TestWatchMultiExec(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: servers.StartRedis(t).Addr()})
	defer client.Close()
	if err := client.Set(t.Context(), "stock", pieces, 0).Err(); err != nil {
		t.Fatal(err)
	}
	sell(t, func(ctx context.Context) (got bool, err error) {
		for {
			err := client.Watch(ctx, func(tx *redis.Tx) error {
				left, err := tx.Get(ctx, "stock").Int()
				if err != nil || left == 0 {
					got = false
					return err
				}
				_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
					p.Set(ctx, "stock", left-1, 0)
					return nil
				})
				got = err == nil
				return err
			}, "stock")
			if !errors.Is(err, redis.TxFailedErr) { // else somebody was first: read again
				return got, err
			}
		}
	})
}

// A transaction that compares the revision which was read.
func TestTransactionOnRevision(t *testing.T) {
	t.Parallel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{servers.StartEtcd(t, servers.EtcdCurrent).Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Put(t.Context(), "stock", strconv.Itoa(pieces)); err != nil {
		t.Fatal(err)
	}
	sell(t, func(ctx context.Context) (bool, error) {
		for {
			read, err := client.Get(ctx, "stock")
			if err != nil {
				return false, err
			}
			stock := read.Kvs[0]
			left, err := strconv.Atoi(string(stock.Value))
			if err != nil || left == 0 {
				return false, err
			}
			done, err := client.Txn(ctx).
				If(clientv3.Compare(clientv3.ModRevision("stock"), "=", stock.ModRevision)).
				Then(clientv3.OpPut("stock", strconv.Itoa(left-1))).
				Commit()
			if err != nil || done.Succeeded { // else somebody was first: read again
				return err == nil, err
			}
		}
	})
}
