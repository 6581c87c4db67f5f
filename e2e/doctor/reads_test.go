package doctor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// seen checks that what only reads sees the lock "job" in a store that takes no writes, and that the
// doctor gets as far as to say so.
func seen(t *testing.T, store string) {
	t.Helper()
	// A replica may have it only in a moment, and a busy server answers late.
	for args, want := range map[string]string{"ls": "job", "show job": "exclusive", "top": "exclusive"} {
		for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			out, code := run(t, store, strings.Fields(args)...)
			if code == 0 && strings.Contains(out, want) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: exit code %d: %s", args, code, out)
			}
		}
	}
	found := examine(t, store)
	for end := time.Now().Add(time.Minute); found.says("reach", "error") && time.Now().Before(end); {
		found = examine(t, store)
	}
	found.has("rights", "error", "take a lock")
	if out, code := run(t, store, "run", "-n", "other", "--", "true"); code == 0 {
		t.Errorf("a lock was taken: %s", out)
	}
}

func TestReadsOnRedisThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, "--repl-diskless-sync-delay", "0")
	store := "redis://" + r.Addr()
	held(t, store)
	seen(t, "redis://"+servers.StartRedis(t, "--replicaof", fmt.Sprint("127.0.0.1 ", r.Port)).Addr())
	r.Must(t, "CONFIG", "SET", "maxmemory", "1")
	seen(t, store)
	r.Must(t, "CONFIG", "SET", "maxmemory", "0")
	r.Must(t, "CONFIG", "SET", "min-replicas-to-write", "5")
	seen(t, store)
}

func TestReadsOnPostgresThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	store := "postgres://postgres@%s/postgres?sslmode=disable"
	held(t, fmt.Sprintf(store, p.Addr()))
	seen(t, fmt.Sprintf(store, p.StartStandby(t).Addr()))
	p.Must(t, "ALTER ROLE postgres SET default_transaction_read_only = on")
	seen(t, fmt.Sprintf(store, p.Addr()))
}

func TestReadsOnMySQLThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	m := servers.StartMySQL(t)
	store := "mysql://root@" + m.Addr() + "/locks"
	held(t, store)
	m.Must(t, "SET GLOBAL super_read_only = ON")
	seen(t, store)
}

func TestReadsOnMariaDBThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	m := servers.StartMariaDB(t)
	held(t, "mysql://root@"+m.Addr()+"/locks")
	m.Must(t, "CREATE USER app IDENTIFIED BY '"+canary+"'", "GRANT ALL ON locks.* TO app", "SET GLOBAL read_only = ON")
	seen(t, "mysql://app:"+canary+"@"+m.Addr()+"/locks")
}
