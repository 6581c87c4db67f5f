package doctor_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/servers"
)

func TestPostgres(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	store := "postgres://postgres@" + p.Addr() + "/postgres?sslmode=disable"
	fresh := examine(t, store)
	fresh.has("reach", "warning", "no lock tables")
	fresh.looked("version", "persistence", "replicas", "isolation", "clock", "promises")
	fresh.has("rights", "ok", "may create the lock tables")
	fresh.has("waking", "warning", "not looked at")
	p.Must(t, "CREATE ROLE stranger LOGIN", "ALTER ROLE stranger SET default_transaction_isolation = serializable")
	denied := examine(t, strings.Replace(store, "postgres@", "stranger@", 1))
	denied.has("rights", "error", "may not create them")
	denied.has("isolation", "warning", "SERIALIZABLE")
	examine(t, strings.Replace(store, "postgres@", "stranger@", 1)+"&schema=nosuch").has("rights", "error", "may not create them")
	p.Must(t, "SELECT 1 WHERE to_regclass('leasehold_locks') IS NULL") // and it has made none
	still := held(t, store)
	examine(t, store).fine("ok", "persistence", "replicas", "isolation", "clock", "waking")
	if n := p.Must(t, "SELECT count(*) FROM leasehold_locks"); n != "1" {
		t.Errorf("%s rows, want that of job alone", n)
	}
	still()

	p.Must(t, "CREATE ROLE reads LOGIN", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reads", "CREATE ROLE nobody LOGIN")
	examine(t, strings.Replace(store, "postgres@", "reads@", 1)).has("rights", "error", "take a lock", "lacks a right")
	examine(t, strings.Replace(store, "postgres@", "nobody@", 1)).has("reach", "error", "lacks a right")
	p.Must(t, "ALTER ROLE postgres SET default_transaction_isolation = serializable", "ALTER ROLE postgres SET synchronous_commit = off")
	weak := examine(t, store)
	weak.has("isolation", "warning", "SERIALIZABLE", "READ COMMITTED")
	weak.has("persistence", "warning", "synchronous_commit is off")
	weak.fine("warning")
	examine(t, store+"&listen=127.0.0.1:1").has("waking", "warning", "poll")
	p.Must(t, "ALTER ROLE postgres RESET ALL")
	p.StartStandby(t)
	examine(t, store).has("replicas", "warning", "none of them synchronous")

	resume := p.Pause()
	away(t, store)
	resume()
	p.Kill()
	away(t, store)
}

func TestPostgresStandby(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	run(t, "postgres://postgres@"+p.Addr()+"/postgres?sslmode=disable", "run", "job", "--", "true")
	fresh := examine(t, "postgres://postgres@"+p.StartStandby(t).Addr()+"/template1?sslmode=disable")
	fresh.has("replicas", "error", "read-only")
	standby := examine(t, "postgres://postgres@"+p.StartStandby(t).Addr()+"/postgres?sslmode=disable")
	standby.has("replicas", "error", "read-only")
	standby.has("rights", "error", "read-only")
}

// A password that is wrong is not shown, and neither is one that is right.
func TestPostgresPassword(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	p.Must(t, "CREATE ROLE locker SUPERUSER LOGIN PASSWORD '"+canary+"'")
	examine(t, "postgres://locker:"+canary+"@"+p.Addr()+"/nosuch?sslmode=disable").has("reach", "error", "nosuch")
}

func TestMariaDB(t *testing.T) {
	t.Parallel()
	m := servers.StartMariaDB(t)
	store := "mysql://root@" + m.Addr() + "/locks"
	fresh := examine(t, store)
	fresh.has("reach", "warning", "no lock tables")
	fresh.looked("version", "persistence", "replicas", "isolation", "clock", "promises")
	fresh.has("rights", "ok", "may create the lock tables")
	m.Must(t, "CREATE USER stranger", "GRANT SELECT ON locks.* TO stranger", "CREATE USER maker", "GRANT ALL ON locks.* TO maker")
	examine(t, "mysql://stranger@"+m.Addr()+"/locks").has("rights", "error", "may not create them")
	examine(t, "mysql://maker@"+m.Addr()+"/locks").has("rights", "ok", "may create the lock tables")
	still := held(t, store)
	m.Must(t, "SET GLOBAL innodb_flush_log_at_trx_commit = 1")
	examine(t, store).fine("ok", "persistence", "replicas", "isolation", "clock")
	if n := m.Must(t, "SELECT count(*) FROM locks.leasehold_locks"); n != "1" {
		t.Errorf("%s rows, want that of job alone", n)
	}
	still()

	m.Must(t, "CREATE USER looker IDENTIFIED BY '"+canary+"'", "GRANT SELECT ON locks.* TO looker")
	examine(t, "mysql://looker:"+canary+"@"+m.Addr()+"/locks").has("reach", "error", "lacks a right")
	examine(t, "mysql://looker:x"+canary+"@"+m.Addr()+"/locks").has("reach", "error", "Access denied")
	m.Must(t, "SET GLOBAL innodb_flush_log_at_trx_commit = 2", "SET GLOBAL tx_isolation = 'SERIALIZABLE'")
	weak := examine(t, store)
	weak.has("persistence", "warning", "innodb_flush_log_at_trx_commit is 2")
	weak.has("isolation", "warning", "SERIALIZABLE")
	weak.fine("warning")

	resume := m.Pause()
	away(t, store)
	resume()
	m.Stop()
	away(t, store)
}

func TestMySQL(t *testing.T) {
	t.Parallel()
	m := servers.StartMySQL(t)
	store := "mysql://root@" + m.Addr() + "/locks"
	still := held(t, store)
	m.Must(t, "SET GLOBAL innodb_flush_log_at_trx_commit = 1")
	examine(t, store).fine("ok", "persistence", "replicas", "isolation", "clock")
	still()
	m.Must(t, "SET GLOBAL read_only = ON")
	examine(t, store).has("replicas", "error", "read-only")
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	store := "sqlite:" + path
	examine(t, store).has("reach", "warning", "does not exist yet")
	if _, err := os.Stat(path); err == nil {
		t.Error("the doctor has made the file")
	}
	examine(t, "sqlite:"+filepath.Join(t.TempDir(), "missing", "locks.db")).has("reach", "error", "missing")
	if err := os.WriteFile(path, nil, 0o660); err != nil {
		t.Fatal(err)
	}
	fresh := examine(t, store)
	fresh.has("reach", "warning", "no lock tables")
	fresh.has("file", "ok", path)
	fresh.has("rights", "ok", "may create")
	fresh.timed()
	if fresh.says("persistence", "warning") {
		t.Errorf("the first lock makes it durable:\n%s", fresh.text)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 0 {
		t.Errorf("the doctor has written the file: %v, %v", info, err)
	}
	still := held(t, store)
	examine(t, store).fine("ok", "persistence", "file")
	still()

	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	examine(t, "sqlite:"+link).has("file", "ok", "leads to", path)
	if err := os.Link(path, path+".2"); err != nil {
		t.Fatal(err)
	}
	examine(t, store).has("reach", "error", "hard links")
	if err := os.Remove(path + ".2"); err != nil {
		t.Fatal(err)
	}
	examine(t, store).fine("ok")
	if err := os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	examine(t, store).has("reach", "error", "not a database")
}

// A disk that is read-only or full is no place for locks.
func TestSQLiteDisk(t *testing.T) {
	t.Parallel()
	for what, then := range map[string]string{
		"read-only": "mount -o remount,ro .",
		"full":      "! dd if=/dev/zero of=fill bs=1024",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			onDisk(t, then)
		})
	}
}

// onDisk has the doctor look at a file of a small disk to which something happens.
func onDisk(t *testing.T, happens string) {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("unshare", "-rm", "true").CombinedOutput(); err != nil {
		t.Skipf("no mount namespaces here: %s", out)
	}
	cmd := exec.Command("unshare", "-rm", "sh", "-c", `mount -t tmpfs -o size=1m none . && cd "$PWD" && "$0" run job -- true && `+happens+` && "$0" doctor`, binary)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME=", "LEASEHOLD_STORE=sqlite:locks.db")
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 69 || !strings.Contains(string(out), "error") || !strings.Contains(string(out), "full nor read-only") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
