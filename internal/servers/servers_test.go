package servers

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// failing is a test that is expected to fail.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (f *failing) Skipf(format string, args ...any) { f.Fatalf("skipped: "+format, args...) }

// says returns what a test prints if it does what test does.
func says(t *testing.T, test func(t testing.TB)) string {
	f := &failing{TB: t}
	end := make(chan struct{})
	go func() {
		defer close(end)
		test(f)
	}()
	<-end
	return f.said
}

// go test installs nothing. Its message names the script that does.
func TestMissingServersNameWhatInstallsThem(t *testing.T) {
	t.Setenv("PATH", "")
	if said := says(t, func(t testing.TB) { StartRedis(t) }); !strings.Contains(said, "make tools") || !strings.Contains(said, "scripts/install-tools redis") {
		t.Errorf("without redis-server a test says %q", said)
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	if said := says(t, func(t testing.TB) { StartEtcd(t, EtcdCurrent) }); !strings.Contains(said, "scripts/install-tools etcd-current") {
		t.Errorf("without a built etcd a test says %q", said)
	}
}

func TestMissingMySQLNamesWhatFetchesIt(t *testing.T) {
	t.Setenv("LEASEHOLD_SERVERS", t.TempDir())
	if said := says(t, func(t testing.TB) { StartMySQL(t) }); !strings.Contains(said, "skipped") || !strings.Contains(said, "scripts/fetch-server mysql 9") {
		t.Errorf("without mysqld a test says %q", said)
	}
}

// Answers of databases are text, whatever the type. Errors are returned.
func TestDatabasesAnswer(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 70_000)
	for name, db := range map[string]interface {
		Ask(statements ...string) (string, error)
	}{"PostgreSQL": StartPostgres(t), "MariaDB": StartMariaDB(t)} {
		for statement, want := range map[string]string{
			"SELECT 42": "42", "SELECT NULL": "", "SELECT '" + long + "'": long, "SELECT 1 WHERE 1 = 0": "", "CREATE ROLE a": "",
		} {
			if got, err := db.Ask(statement); got != want || err != nil {
				t.Errorf("%s: %.40s answers %.40q, %v", name, statement, got, err)
			}
		}
		if got, err := db.Ask("SELECT 1", "SELECT nothing FROM nowhere", "SELECT 2"); got != "" || err == nil || !strings.Contains(err.Error(), "nowhere") {
			t.Errorf("%s: a wrong statement answers %q, %v", name, got, err)
		}
		if got, err := db.Ask("SELECT 1", "SELECT 2"); got != "2" || err != nil {
			t.Errorf("%s: two statements answer %q, %v", name, got, err)
		}
		own := map[string]string{"PostgreSQL": "own", "MariaDB": "locks.own"}[name]
		if got, err := db.Ask("CREATE TEMPORARY TABLE "+own+" (n INTEGER)", "SELECT count(*) FROM "+own); got != "0" || err != nil {
			t.Errorf("%s: a table of the connection has %q rows, %v", name, got, err)
		}
	}
}
