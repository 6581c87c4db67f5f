// Package demo plays the scenarios of `leasehold demo` on real engines.
package demo

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/e2e/program"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/proxy"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// binary is the real command, built once.
var binary string

func TestMain(m *testing.M) {
	os.Unsetenv("LEASEHOLD_STORE")                         // the tests set what they test
	if err := flag.Set("test.parallel", "6"); err != nil { // they mostly wait
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(program.Main(m, &binary))
}

// A report is what a scenario prints.
type report struct {
	Runs map[string]run
}

type run struct {
	Broken     []string
	Tokens     []uint64
	Both       float64 `json:"both_ms"`
	Refused    int
	NotGranted int `json:"not_granted"`
	Backwards  int
}

// bound ends a scenario that hangs. Those that do not hang take minutes on a busy machine.
const bound = 20 * time.Minute

// play runs one scenario and returns what it printed and its exit code.
func play(t *testing.T, args ...string) (report, int) {
	t.Helper()
	out, failed, code := command(t, bound, args...)
	if code != 0 {
		t.Logf("%q: exit code %d: %s", args, code, failed)
	}
	var r report
	if err := json.Unmarshal(out, &r); err != nil && code <= 1 {
		t.Fatalf("%q: %v in %s\n%s", args, err, out, failed)
	}
	return r, code
}

// command runs one scenario. After most it ends its processes, so that they write down what
// they were doing.
func command(t *testing.T, most time.Duration, args ...string) (out, failed []byte, code int) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(binary, append([]string{"demo", "--json"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	abort := time.AfterFunc(most, func() {
		for _, pid := range processes(dir) {
			if pid != cmd.Process.Pid { // it tells what the others have written
				_ = syscall.Kill(pid, syscall.SIGABRT) // or it has ended
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		}
	})
	abortLast := time.AfterFunc(most+10*time.Second, func() { _ = cmd.Process.Signal(syscall.SIGABRT) })
	err := cmd.Wait()
	abort.Stop()
	abortLast.Stop()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return stdout.Bytes(), stderr.Bytes(), cmd.ProcessState.ExitCode()
}

func TestHangTellsWhatItWasDoing(t *testing.T) {
	t.Parallel()
	for most := time.Second; ; most *= 2 { // a busy machine may not have begun the work by then
		_, failed, code := command(t, most, "longjob", "--steps", "10000", "--strategy", "lock")
		if code != 0 && bytes.Contains(failed, []byte("demo.(*LongJob)")) {
			return
		}
		if code == 0 || most > 16*time.Second {
			t.Fatalf("exit code %d after %v: %.2000s", code, most, failed)
		}
	}
}

// shortForms are the scenarios that every store plays.
var shortForms = []string{
	"seckill --buyers 12 --stock 3", "inventory --items 4 --quantities 2,2,1,1", "coupon --users 5 --series 2 --ttl 2s", "cron --day 3s --servers 3",
	"longjob --steps 12", "parking --cars 8 --bays 4 --most 3",
}

// brief are the stores that play all of them in the short lane.
var brief = []string{"sqlite", "redis", "postgres"}

// engines start a server and return the store's URL; "": the default store, a file of its own
// for each scenario.
var engines = map[string]func(t *testing.T) string{
	"sqlite": func(t *testing.T) string { return "" },
	"redis":  func(t *testing.T) string { return "redis://" + servers.StartRedis(t).Addr() },
	// Its shortest session is longer than what the scenarios ask for.
	"zookeeper": func(t *testing.T) string {
		z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{Tick: 400 * time.Millisecond, Config: []string{"minSessionTimeout=800"}})
		return "zookeeper://" + z.Addr()
	},
	// Its servers keep leases for longer than their holders count on them.
	"zookeeper, slow": func(t *testing.T) string {
		return "zookeeper://" + servers.StartZooKeeper(t, servers.ZooKeeperOptions{Tick: 400 * time.Millisecond}).Addr()
	},
	"etcd": func(t *testing.T) string { return "etcd://" + servers.StartEtcd(t, servers.EtcdCurrent).Addr() },
	"nats": func(t *testing.T) string {
		return "nats://" + servers.NATSAddrs(servers.StartNATS(t, 1, "")) + "/locks"
	},
	"postgres": func(t *testing.T) string { return postgres(servers.StartPostgres(t)) },
	"mariadb":  func(t *testing.T) string { return mysql(servers.StartMariaDB(t)) },
	"mysql":    func(t *testing.T) string { return mysql(servers.StartMySQL(t)) },
	"s3":       func(t *testing.T) string { return servers.StartS3(t).URL("locks") },
	"kubernetes": func(t *testing.T) string {
		servers.OnlyWithAll(t)
		k := servers.StartKubernetes(t)
		k.AddNamespace("locks")
		return k.URL("locks")
	},
	"redlock": func(t *testing.T) string {
		return "redlock://" + strings.Join(redlock(t), ",") + "?min_uptime=off" // else young servers grant nothing
	},
}

func postgres(p *servers.Postgres) string { return "postgres://postgres@" + p.Addr() + "/postgres" }

func mysql(m *servers.MySQL) string { return "mysql://root@" + m.Addr() + "/locks" }

func redlock(t *testing.T) (hosts []string) {
	for range 3 {
		hosts = append(hosts, servers.StartRedis(t).Addr())
	}
	return hosts
}

// The textbook's shop, with its books where the textbook has them, and the lock beside them
// or elsewhere. No schema or database of the shop's is left.
func TestBooksOnServers(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (url string, spaces func() (string, error)){
		"postgres": func(t *testing.T) (string, func() (string, error)) {
			p := servers.StartPostgres(t)
			return postgres(p), func() (string, error) { return p.Ask("SELECT nspname FROM pg_namespace") }
		},
		"mariadb": func(t *testing.T) (string, func() (string, error)) {
			m := servers.StartMariaDB(t)
			return mysql(m), func() (string, error) { return m.Ask("SHOW DATABASES") }
		},
		"mysql": func(t *testing.T) (string, func() (string, error)) {
			m := servers.StartMySQL(t)
			return mysql(m), func() (string, error) { return m.Ask("SHOW DATABASES") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "mysql" {
				servers.Long(t, "the books are in MariaDB, too")
			}
			shop, spaces := start(t)
			for _, form := range shortForms {
				r, code := play(t, append(strings.Fields(form), "--shop", shop, "--strategy", "lock")...)
				if code != 0 || len(r.Runs["lock"].Broken) > 0 {
					t.Errorf("%s: exit code %d: %+v", form, code, r)
				}
			}
			if r, code := play(t, "seckill", "--shop", shop); code != 0 || len(r.Runs["none"].Broken) == 0 {
				t.Errorf("exit code %d: %+v, want it oversold without a lock", code, r)
			}
			if r, code := play(t, "seckill", "--shop", shop, "--store", shop); code != 0 {
				t.Errorf("lock and books in one database: exit code %d: %+v", code, r)
			}
			if left, err := spaces(); err != nil || strings.Contains(left, "leasehold_demo") {
				t.Errorf("left behind: %s, %v", left, err)
			}
		})
	}
}

// The processes do not get the variable, but must log in as well.
func TestBooksBehindAPasswordOfTheEnvironment(t *testing.T) {
	m := servers.StartMariaDB(t)
	m.Must(t, "CREATE USER shop IDENTIFIED BY 'pw'", "GRANT ALL ON *.* TO shop")
	t.Setenv("LEASEHOLD_PASSWORD", "pw")
	if r, code := play(t, "seckill", "--buyers", "4", "--stock", "2", "--shop", "mysql://shop@"+m.Addr()+"/locks"); code != 0 {
		t.Errorf("exit code %d: %+v", code, r)
	}
}

// asked sees what clients send to a server.
type asked func(text []byte)

func (a asked) Write(text []byte) (int, error) { a(text); return len(text), nil }
func (asked) Close() error                     { return nil }

// The schema is there, but the demo never learns that.
func TestNoBooksAreLeftByADemoInterruptedAtTheirCreation(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wire *proxy.Proxy
	started := make(chan struct{})
	wire = proxy.ListenAt(l, func() (_, _ io.WriteCloser) {
		<-started
		return asked(func(text []byte) {
			if bytes.Contains(text, []byte("CREATE SCHEMA")) {
				wire.DropReplies()
			}
		}), asked(func([]byte) {})
	}, p.Addr())
	close(started)
	t.Cleanup(wire.Close)
	cmd := exec.Command(binary, "demo", "seckill", "--shop", "postgres://postgres@"+wire.Addr()+"/postgres?sslmode=disable")
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	const count = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'leasehold_demo_%'"
	claimtest.Eventually(t, "a schema", func() bool { return p.Must(t, count) == "1" })
	wire.Forget()
	wire.Pass()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGINT {
		t.Errorf("it ended with %v, want the signal", cmd.ProcessState)
	}
	if left := p.Must(t, count); left != "0" {
		t.Errorf("%s schemas are left", left)
	}
}

// While the second day's report is written, the lock's store stalls for longer than the lease lasts:
// it is sent once more at most, by whoever cannot know of it.
func TestDailyReportWhileTheStoreStalls(t *testing.T) {
	t.Parallel()
	const day = 3 * time.Second
	stalledDays(t, day, func(books, store *servers.Postgres, table string) {
		written := make(chan struct{})
		const waits = "(SELECT count(*) > 0 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE c.relname = 'reports' AND NOT granted)"
		go func() { // the next report waits for 0.4 s, well within its lease
			defer close(written)
			_, _ = books.Ask("BEGIN", "LOCK TABLE "+table+" IN EXCLUSIVE MODE",
				"DO $$ BEGIN FOR i IN 1 .. 1000 LOOP EXIT WHEN "+waits+"; PERFORM pg_sleep(0.01); END LOOP; END $$",
				"SELECT pg_sleep(0.4)", "COMMIT")
		}()
		holds(t, books, "SELECT "+waits+" OR (SELECT count(*) > 1 FROM "+table+")")
		resume := store.Pause()
		time.Sleep(day * 8 / 10)
		resume()
		<-written
	})
}

// The store stalls once the first report was sent, until the period of that report is over. The
// servers that asked meanwhile do not send another one for the same day.
func TestDailyReportIsNotSentWhenItsPeriodIsOver(t *testing.T) {
	t.Parallel()
	const day = 3 * time.Second
	stalledDays(t, day, func(_, store *servers.Postgres, _ string) {
		holds(t, store, "SELECT count(*) > 0 FROM leasehold_locks WHERE name NOT LIKE '%/ttl' AND owner = '' AND expires > since") // it was released
		resume := store.Pause()
		time.Sleep(day)
		resume()
	})
}

// stalledDays plays two days on a store that stall stalls once the first report was sent. The table
// has the reports. The books must be in order.
func stalledDays(t *testing.T, day time.Duration, stall func(books, store *servers.Postgres, table string)) {
	t.Helper()
	books, store := servers.StartPostgres(t), servers.StartPostgres(t)
	through := make(chan struct{})
	go func() {
		defer close(through)
		const find = "SELECT nspname || '.reports' FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relname = 'reports'"
		holds(t, books, "SELECT count(*) > 0 FROM ("+find+") t")
		table, err := books.Ask(find)
		if err != nil {
			t.Error(err)
		}
		holds(t, books, "SELECT count(*) > 0 FROM "+table)
		stall(books, store, table)
	}()
	r, code := play(t, "cron", "--day", day.String(), "--servers", "3", "--strategy", "lock", "--store", postgres(store), "--shop", postgres(books))
	<-through
	if code != 0 || len(r.Runs["lock"].Broken) > 0 {
		t.Errorf("exit code %d: %+v", code, r)
	}
}

// holds waits until query returns true, for a minute at most.
func holds(t *testing.T, p *servers.Postgres, query string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		answer, err := p.Ask(query)
		if err == nil && answer == "t" {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%s: %q, %v", query, answer, err)
			return
		}
	}
}

// Without a lock no store makes a difference; the default store shows it.
func TestBooksAreBrokenWithoutLock(t *testing.T) {
	t.Parallel()
	for _, form := range shortForms {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			r, code := play(t, append(strings.Fields(form), "--strategy", "none")...)
			if code != 0 || len(r.Runs["none"].Broken) == 0 {
				t.Errorf("exit code %d: %+v, want broken books", code, r)
			}
		})
	}
}

func TestBooksAreInOrderUnderTheLock(t *testing.T) {
	t.Parallel()
	for name, start := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"--strategy", "lock"}
			if store := start(t); store != "" {
				args = append(args, "--store", store)
			}
			for i, form := range shortForms {
				t.Run(form, func(t *testing.T) {
					t.Parallel()
					if i > 0 && !slices.Contains(brief, name) {
						servers.Long(t, "each store plays one scenario, and three of them play all")
					}
					r, code := play(t, append(strings.Fields(form), args...)...)
					if name == "kubernetes" && strings.HasPrefix(form, "longjob") {
						if code != 64 {
							t.Errorf("exit code %d, want 64: no link to it can be cut", code)
						}
						return
					}
					if code != 0 || len(r.Runs["lock"].Broken) > 0 || len(r.Runs) != 1 {
						t.Errorf("exit code %d: %+v", code, r)
					}
				})
			}
		})
	}
}

func TestOptimisticBooksAreInOrder(t *testing.T) {
	t.Parallel()
	for _, form := range shortForms[:2] {
		r, code := play(t, append(strings.Fields(form), "--strategy", "optimistic")...)
		if code != 0 || len(r.Runs["optimistic"].Broken) > 0 {
			t.Errorf("exit code %d: %+v", code, r)
		}
	}
}

// Books that are not in order where the strategy promises it: the program says so and exits 1. The shop's database
// writes down a sale that nobody has made.
func TestBrokenBooksExitWith1(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	p.Must(t, `CREATE FUNCTION spoil() RETURNS event_trigger LANGUAGE plpgsql AS $$
		DECLARE made record;
		BEGIN
			FOR made IN SELECT object_identity AS name FROM pg_event_trigger_ddl_commands() WHERE object_identity LIKE '%.sales' LOOP
				EXECUTE 'INSERT INTO ' || made.name || ' VALUES (0, ''phone'')';
			END LOOP;
		END $$`,
		"CREATE EVENT TRIGGER spoil ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION spoil()")
	rep, code := play(t, "seckill", "--buyers", "4", "--stock", "2", "--strategy", "lock", "--shop", postgres(p))
	if code != 1 || len(rep.Runs["lock"].Broken) == 0 {
		t.Errorf("exit code %d: %+v, want 1", code, rep)
	}
}

func TestWhatFailoversLose(t *testing.T) {
	t.Parallel()
	servers.Need(t, "redis", "redis-server")
	r, code := play(t, "failover", "--ttl", "4s") // long enough to be seen on a busy machine
	async, fencing, replicas, redlock := r.Runs["async"], r.Runs["fencing"], r.Runs["replicas"], r.Runs["redlock"]
	if code != 0 || len(r.Runs) != 4 {
		t.Fatalf("exit code %d: %+v", code, r)
	}
	for name, run := range r.Runs {
		if len(run.Tokens) != 2 || run.Tokens[0] == 0 || run.Tokens[0] >= run.Tokens[1] {
			t.Errorf("%s: tokens %v do not grow", name, run.Tokens)
		}
	}
	if async.Both == 0 || async.Backwards == 0 || len(async.Broken) == 0 {
		t.Errorf("async: %+v, want two holders and old writes", async)
	}
	if fencing.Both == 0 || fencing.Refused == 0 || fencing.Backwards > 0 {
		t.Errorf("fencing: %+v, want old writes refused", fencing)
	}
	if replicas.Both > 0 || replicas.NotGranted == 0 || replicas.Backwards > 0 {
		t.Errorf("replicas: %+v, want one holder", replicas)
	}
	if redlock.Both > 0 || redlock.Backwards > 0 {
		t.Errorf("redlock: %+v, want one holder", redlock)
	}
}

func TestFailoverOfGivenRedlock(t *testing.T) {
	t.Parallel()
	store := "redlock://" + strings.Join(redlock(t), ",") + "?min_uptime=off"
	r, code := play(t, "failover", "--ttl", "4s", "--strategy", "redlock", "--store", store)
	if run := r.Runs["redlock"]; code != 0 || len(run.Tokens) != 2 || run.Tokens[0] >= run.Tokens[1] || run.Both > 0 {
		t.Errorf("exit code %d: %+v", code, r)
	}
}

func TestFailoverOfGivenSentinels(t *testing.T) {
	t.Parallel()
	s := servers.StartSentinel(t)
	store := "redis+sentinel://" + strings.Join(s.Sentinels, ",") + "/" + s.Master
	before := s.Primary(t)
	r, code := play(t, "failover", "--ttl", "4s", "--strategy", "fencing", "--store", store)
	if run := r.Runs["fencing"]; code != 0 || len(run.Tokens) != 2 || run.Tokens[0] >= run.Tokens[1] || run.Backwards > 0 {
		t.Errorf("exit code %d: %+v", code, r)
	}
	if s.Primary(t) == before {
		t.Error("the primary is the same")
	}
}

// A terminal sends its signals to the whole group of the demo.
func TestFailoverServersEndWithTheDemo(t *testing.T) {
	t.Parallel()
	servers.Need(t, "redis", "redis-server")
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd := exec.Command(binary, "demo", "failover", "--ttl", "1m")
			cmd.Env = append(os.Environ(), "TMPDIR="+dir)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				for _, pid := range processes(dir) {
					_ = syscall.Kill(pid, syscall.SIGKILL) // or it has ended
				}
			})
			// Itself, a server and the shell that keeps it, and more: it starts one after the other.
			claimtest.Eventually(t, "the demo to run", func() bool { return len(processes(dir)) >= 4 })
			to := -cmd.Process.Pid
			if sig == syscall.SIGKILL { // no terminal sends it
				to = cmd.Process.Pid
			}
			if err := syscall.Kill(to, sig); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()
			claimtest.Eventually(t, "its processes to end", func() bool { return len(processes(dir)) == 0 })
		})
	}
}

// processes are those that have dir in their environment, or as Redis, which writes over
// that, work in a folder of it.
func processes(dir string) (pids []int) {
	environs, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is right
	for _, path := range environs {
		env, _ := os.ReadFile(path) // it may have ended meanwhile
		cwd, _ := os.Readlink(filepath.Join(filepath.Dir(path), "cwd"))
		if bytes.Contains(env, []byte("TMPDIR="+dir+"\x00")) || strings.HasPrefix(cwd, dir) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}
