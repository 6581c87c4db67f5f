package badday

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A failing is a store of a row of the table "A store that fails" in docs/bad-day.md.
type failing struct {
	row   string // how it begins
	start func(t *testing.T) trouble
	code  int   // the exit code of a job that starts while the store fails
	err   error // matched by errors of the library meanwhile; nil: no sentinel is
}

// The rows of the table. TestDeniedByTheStore has the exit code of the last row on all other engines, and
// cmd/leasehold's TestFullAndReadOnlyDisksGrantNothing the second row on SQLite.
var failings = map[string]failing{
	"redis/silent":       {unserving, silentStore("redis"), 69, nil},
	"postgres/silent":    {unserving, silentStore("postgres"), 69, nil},
	"redis/read-only":    {unserving, troubles["redis/disk"], 69, leasehold.ErrReadOnly},
	"postgres/read-only": {unserving, troubles["postgres/read-only"], 69, leasehold.ErrReadOnly},
	"redis/full":         {"is full", troubles["redis/full"], 69, leasehold.ErrFull},
	"redis/denied":       {refusing, troubles["redis/password"], 77, leasehold.ErrDenied},
	"postgres/denied":    {refusing, troubles["postgres/rights"], 77, leasehold.ErrDenied},
}

const unserving, refusing = "does not answer, or is read-only", "refuses the user"

// silentStore is one whose server is paused.
func silentStore(name string) func(t *testing.T) trouble {
	return func(t *testing.T) trouble {
		s := pausables(t)[name]()
		var resume func()
		return trouble{url: s.url, holdersLose: true, begin: func() { resume = s.pause() }, end: func() { resume() }}
	}
}

func TestPageHasTheFailing(t *testing.T) {
	page, err := os.ReadFile("../../docs/bad-day.md")
	must(t, err)
	for name, f := range failings {
		_, row, _ := strings.Cut(string(page), "\n| "+f.row+" |")
		if row, _, _ = strings.Cut(row, "\n"); !strings.HasSuffix(row, fmt.Sprintf(" keeps waiting | fails: %d |", f.code)) {
			t.Errorf("%s: the page says %q", name, row)
		}
	}
}

// A store fails for some seconds. The job whose deadline comes meanwhile is ended, the one with a longer lease goes on,
// and so does a wait without a limit.
func TestAStoreThatFails(t *testing.T) {
	t.Parallel()
	for name, f := range failings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "redis/read-only" || name == "postgres/silent" {
				servers.Long(t, "20 s: the other store fails in this way, too")
			}
			for long := 45 * time.Second; !f.outlasted(t, long); long *= 2 {
				t.Logf("the failure took more than half of %v", long)
			}
		})
	}
}

// outlasted makes a store fail beside a job with a lease of long, and checks all jobs. On a busy machine the failure may
// take too much of the lease: then it reports false, and has not checked that the job outlasts it.
func (f failing) outlasted(t *testing.T, long time.Duration) bool {
	t.Helper()
	s, dir := f.start(t), t.TempDir()
	began := time.Now()
	locks := open(t, s.url, nil)
	outlasts := launch(t, dir, s.url, "run", "-v", "--ttl", long.String(), "x", "--", "sh", "-c", "echo > outlasts; while ! [ -e go ]; do sleep 0.05; done")
	ends := launch(t, dir, s.url, "run", "--ttl", "4s", "y", "--", "sh", "-c", "echo > ends; exec sleep 3600")
	until(t, "two jobs", func() bool { return lines(dir, "outlasts") == 1 && lines(dir, "ends") == 1 })
	waits := launch(t, dir, s.url, "run", "x", "--", "touch", "waited")
	until(t, "a waiter", func() bool { return len(showJSON(t, s.url, "x").Waiters) == 1 })
	gives := launch(t, dir, s.url, "run", "-w", "8", "x", "--", "touch", "gave")
	until(t, "another", func() bool { return len(showJSON(t, s.url, "x").Waiters) == 2 || gives.isOver() })
	holders := showJSON(t, s.url, "x").Holders
	if len(holders) != 1 {
		t.Fatalf("%d holders", len(holders))
	}
	ended := time.Now().Add(time.Duration(holders[0].Left * float64(time.Second))) // unless it is renewed
	s.begin()
	if out, code := command(t, s.url, "run", "z", "--", "true"); code != f.code {
		t.Errorf("a new job: exit code %d, want %d:\n%s", code, f.code, out)
	}
	if _, err := locks.TryAcquire(t.Context(), "z"); err == nil || f.err != nil && !errors.Is(err, f.err) {
		t.Errorf("TryAcquire: %v; want %v", err, f.err)
	}
	if code := gives.code(t); code != 1 {
		t.Errorf("a wait of 8 s: exit code %d, want 1", code)
	}
	if s.holdersLose {
		if code := ends.code(t); code != 75 {
			t.Errorf("a job whose lease ended: exit code %d, want 75", code)
		}
		until(t, "a renewal that fails", func() bool { return strings.Contains(outlasts.said.String(), "a renewal of x has failed") })
	}
	if time.Since(began) > long/2 {
		s.end()
		return false
	}
	for name, j := range map[string]*job{"the other job": outlasts, "a wait without a limit": waits} {
		if j.isOver() {
			t.Errorf("%s is over", name)
		}
	}
	s.end()
	until(t, "a renewal", func() bool {
		holders := showJSON(t, s.url, "x").Holders
		return len(holders) == 1 && holders[0].Left > time.Until(ended).Seconds()+1
	})
	if !s.holdersLose && ends.isOver() {
		t.Error("the job is over whose lease this store renews")
	}
	must(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
	if code := outlasts.code(t); code != 0 {
		t.Errorf("a job that outlasts it: exit code %d, want 0", code)
	}
	if code := waits.code(t); code != 0 || !exists(filepath.Join(dir, "waited")) {
		t.Errorf("a job that waited: exit code %d, want 0", code)
	}
	return true
}

// A shown is what "leasehold show --json" prints of a lock.
type shown struct {
	Holders []struct {
		Left float64 `json:"left_seconds"`
	}
	Waiters []any
}

func showJSON(t *testing.T, store, name string) (s shown) {
	t.Helper()
	out, _ := command(t, store, "show", "--json", name)
	_ = json.Unmarshal([]byte(out), &s) // it is asked again
	return s
}

// A job is a command in the background.
type job struct {
	cmd  *exec.Cmd
	said *buffer
	over chan struct{} // closed when it has ended
}

// launch starts a command, and ends it with the test.
func launch(t *testing.T, dir, store string, args ...string) *job {
	t.Helper()
	j := &job{exec.Command(binary, args...), &buffer{}, make(chan struct{})}
	j.cmd.Env, j.cmd.Dir, j.cmd.Stderr = append(os.Environ(), "LEASEHOLD_STORE="+store, "HOME="+dir), dir, j.said
	must(t, j.cmd.Start())
	go func() {
		_ = j.cmd.Wait() // its exit code says more
		close(j.over)
	}()
	t.Cleanup(func() {
		_ = j.cmd.Process.Signal(syscall.SIGKILL)
		<-j.over
		if t.Failed() {
			t.Logf("%q said:\n%s", args, j.said)
		}
	})
	return j
}

func (j *job) isOver() bool {
	select {
	case <-j.over:
		return true
	default:
		return false
	}
}

// code waits for its end.
func (j *job) code(t *testing.T) int {
	t.Helper()
	until(t, "its end", j.isOver)
	return j.cmd.ProcessState.ExitCode()
}
