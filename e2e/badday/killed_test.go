package badday

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// A pausedStore is one whose server is paused.
type pausedStore struct {
	url   string
	pause func() (resume func())
}

func pausables(t *testing.T) map[string]func() pausedStore {
	return map[string]func() pausedStore{
		"sqlite": func() pausedStore { return pausedStore{url: "sqlite:" + filepath.Join(t.TempDir(), "locks.db")} },
		"redis": func() pausedStore {
			const password = "s3cr3t"
			r := servers.StartRedis(t)
			r.Must(t, "CONFIG", "SET", "requirepass", password)
			return pausedStore{"redis://:" + password + "@" + r.Addr() + "/0", r.Pause}
		},
		"postgres": func() pausedStore {
			p := servers.StartPostgres(t)
			return pausedStore{"postgres://postgres@" + p.Addr() + "/postgres", p.Pause}
		},
	}
}

// command is the command in a folder of its own; it lives at most for a minute.
func (s pausedStore) command(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command("timeout", append([]string{"-k", "1", "60", binary}, args...)...)
	cmd.Env = append(os.Environ(), "LEASEHOLD_STORE="+s.url, "HOME="+dir)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	return cmd
}

// killed runs a command with a grandchild under x, kills the run with -9, and returns when
// it was granted. The grandchild's pid is in the file grandchild.
func (s pausedStore) killed(t *testing.T, dir string, beforehand func(), flags ...string) (granted time.Time) {
	t.Helper()
	args := append([]string{"run", "--ttl", "24h"}, flags...)
	script := `trap "" TERM; setsid sh -c 'trap "" TERM; echo $$ > grandchild; while :; do sleep 0.1; done' & wait`
	cmd := exec.Command(binary, append(args, "x", "--", "sh", "-c", script)...)
	cmd.Env, cmd.Dir, cmd.Stderr = append(os.Environ(), "LEASEHOLD_STORE="+s.url, "HOME="+dir), dir, os.Stderr
	granted = time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := granted.Add(30 * time.Second); pidIn(dir) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			cmd.Process.Kill()
			t.Fatal("the command did not start")
		}
	}
	beforehand()
	cmd.Process.Kill()
	cmd.Wait()
	return granted
}

// pidIn reads the pid of the grandchild, 0 if there is none yet.
func pidIn(dir string) (pid int) {
	text, _ := os.ReadFile(filepath.Join(dir, "grandchild"))
	if strings.HasSuffix(string(text), "\n") {
		fmt.Sscan(string(text), &pid)
	}
	return pid
}

// next lets the next one in and checks that nothing of the first is left then. It needs
// more time to end than what Redis grants to waiters is worth before it is renewed.
func (s pausedStore) next(t *testing.T, dir string) {
	t.Helper()
	script := fmt.Sprintf("kill -0 %d 2> error && exit 9; exit 0", pidIn(dir))
	if err := s.command(dir, "run", "-w", "30", "--grace", "4.5", "x", "--", "sh", "-c", script).Run(); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

// Holders are killed: who comes next?
func TestKilledRunIsReleased(t *testing.T) {
	t.Parallel()
	all := pausables(t)
	all["etcd"] = func() pausedStore {
		return pausedStore{url: "etcd://" + servers.StartEtcd(t, servers.EtcdDebian).Addr()}
	}
	all["memcached"] = func() pausedStore { return pausedStore{url: "memcached://" + servers.StartMemcached(t).Addr()} }
	all["nats"] = func() pausedStore {
		return pausedStore{url: "nats://" + servers.StartNATS(t, 1, "")[0].Addr() + "/locks"}
	}
	all["s3"] = func() pausedStore { return pausedStore{url: servers.StartS3(t).URL("locks")} }
	if servers.All { // make matrix builds an API server
		all["kubernetes"] = func() pausedStore {
			k := servers.StartKubernetes(t)
			k.AddNamespace("locks")
			return pausedStore{url: k.URL("locks")}
		}
	}
	all["mysql"] = func() pausedStore {
		return pausedStore{url: "mysql://root@" + servers.StartMariaDB(t).Addr() + "/locks"}
	}
	for name, start := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, dir := start(), t.TempDir()
			s.killed(t, dir, func() {}, "--grace", "0.5")
			s.next(t, dir)
		})
	}
}

func TestKilledRunKeepsItsLeast(t *testing.T) {
	t.Parallel()
	for name, start := range pausables(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, dir := start(), t.TempDir()
			granted := s.killed(t, dir, func() {}, "--grace", "0.5", "--at-least", "5s")
			s.next(t, dir)
			if took := time.Since(granted); took < 5*time.Second {
				t.Errorf("the next one ran after %v", took)
			}
		})
	}
}

// TestGuardianWaitsForASilentServer: it does not answer while the run is killed, and for
// longer than a call may take.
func TestGuardianWaitsForASilentServer(t *testing.T) {
	t.Parallel()
	for name, start := range pausables(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, dir := start(), t.TempDir()
			if s.pause == nil {
				t.Skip("it has no server")
			}
			var resume func()
			s.killed(t, dir, func() { resume = s.pause() }, "--grace", "0.5")
			for end := time.Now().Add(30 * time.Second); syscall.Kill(pidIn(dir), 0) == nil; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the grandchild lives on")
				}
			}
			time.Sleep(7 * time.Second)
			resume()
			s.next(t, dir)
		})
	}
}
