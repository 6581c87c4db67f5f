package crowd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/e2e/together"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/stores"
)

// starts start a server and return the URL of a store that is another in each ROUND, and of which nothing is
// there: no bucket, no tables, no file, no folder, no node.
var starts = map[string]func(t *testing.T) string{
	"sqlite":   func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "ROUND.db") },
	"own file": func(t *testing.T) string { return filepath.Join(t.TempDir(), "ROUND") },
	"redis":    func(t *testing.T) string { return "redis://" + servers.StartRedis(t).Addr() + "/0?prefix=ROUND:" },
	"etcd": func(t *testing.T) string {
		return "etcd://" + servers.StartEtcd(t, servers.EtcdCurrent).Addr() + "/ROUND"
	},
	"zookeeper":  func(t *testing.T) string { return zookeeper(t, 1) },
	"zookeepers": func(t *testing.T) string { return zookeeper(t, 3) },
	"nats": func(t *testing.T) string {
		return "nats://" + servers.NATSAddrs(servers.StartNATS(t, 1, "")) + "/ROUND"
	},
	"nats cluster": func(t *testing.T) string {
		return "nats://" + servers.NATSAddrs(servers.StartNATS(t, 3, "")) + "/ROUND"
	},
	"postgres": func(t *testing.T) string {
		return "postgres://postgres@" + servers.StartPostgres(t).Addr() + "/postgres?prefix=ROUND_"
	},
	"mariadb": func(t *testing.T) string {
		return "mysql://root@" + servers.StartMariaDB(t).Addr() + "/locks?prefix=ROUND_"
	},
	"s3":        func(t *testing.T) string { return servers.StartS3(t).URL("ROUND") },
	"memcached": func(t *testing.T) string { return "memcached://" + servers.StartMemcached(t).Addr() + "?prefix=ROUND" },
	"kubernetes": func(t *testing.T) string {
		servers.OnlyWithAll(t)
		k := servers.StartKubernetes(t)
		k.AddNamespace("locks")
		return k.URL("locks")
	},
}

func zookeeper(t *testing.T, n int) string {
	var hosts []string
	for _, z := range servers.StartZooKeepers(t, n, servers.ZooKeeperOptions{}) {
		hosts = append(hosts, z.Addr())
	}
	return "zookeeper://" + strings.Join(hosts, ",") + "?prefix=/ROUND/locks/of"
}

// Processes that are the first to use a store get their locks, all of them.
func TestFirstUseTogether(t *testing.T) {
	t.Parallel()
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "zookeepers" || name == "nats cluster" {
				servers.Long(t, "they are the first at one server")
			}
			const rounds = 10 // an ensemble needs a moment for each
			together.Check(t, rounds, func() string { return start(t) }, func(t *testing.T, _ int, url string) together.Step {
				return func(round int) error {
					url := strings.ReplaceAll(url, "ROUND", fmt.Sprint("r", round))
					if name == "own file" {
						if err := os.Setenv("XDG_STATE_HOME", url); err != nil {
							return err
						}
						url = "sqlite:"
					}
					return use(url, fmt.Sprint("first ", round))
				}
			})
		})
	}
}

// use opens a store and holds a lock of it.
func use(url, name string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	d, err := stores.Open(ctx, url)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	locks, err := leasehold.New(d, nil)
	if err != nil {
		return err
	}
	defer locks.Close()
	for { // a busy machine may take longer than the first call of an acquisition waits, which then has no answer
		err := locks.Do(ctx, name, func(context.Context) error { return nil })
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
	}
}
