// Package killed kills the holders of the real command and sees who comes next.
package killed

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/e2e/program"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// binary is the real command, built once.
var binary string

func TestMain(m *testing.M) { os.Exit(program.Main(m, &binary)) }

// A store is where the locks are, and how its server is paused.
type store struct {
	url   string
	pause func() (resume func())
}

func stores(t *testing.T) map[string]func() store {
	return map[string]func() store{
		"sqlite": func() store { return store{url: "sqlite:" + filepath.Join(t.TempDir(), "locks.db")} },
		"redis": func() store {
			const password = "s3cr3t"
			r := servers.StartRedis(t)
			r.Must(t, "CONFIG", "SET", "requirepass", password)
			return store{"redis://:" + password + "@" + r.Addr() + "/0", r.Pause}
		},
		"postgres": func() store {
			p := servers.StartPostgres(t)
			return store{"postgres://postgres@" + p.Addr() + "/postgres", p.Pause}
		},
	}
}

// command is the command in a folder of its own; it lives at most for a minute.
func (s store) command(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command("timeout", append([]string{"-k", "1", "60", binary}, args...)...)
	cmd.Env = append(os.Environ(), "LEASEHOLD_STORE="+s.url, "HOME="+dir)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	return cmd
}

// killed runs a command with a grandchild under x, kills the run with -9, and returns when
// it was granted. The grandchild's pid is in the file grandchild.
func (s store) killed(t *testing.T, dir string, beforehand func(), flags ...string) (granted time.Time) {
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
func (s store) next(t *testing.T, dir string) {
	t.Helper()
	script := fmt.Sprintf("kill -0 %d 2> error && exit 9; exit 0", pidIn(dir))
	if err := s.command(dir, "run", "-w", "30", "--grace", "4.5", "x", "--", "sh", "-c", script).Run(); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

func TestKilledRunIsReleased(t *testing.T) {
	t.Parallel()
	all := stores(t)
	all["etcd"] = func() store {
		return store{url: "etcd://" + servers.StartEtcd(t, servers.EtcdDebian).Addr()}
	}
	all["memcached"] = func() store { return store{url: "memcached://" + servers.StartMemcached(t).Addr()} }
	all["nats"] = func() store {
		return store{url: "nats://" + servers.StartNATS(t, 1, "")[0].Addr() + "/locks"}
	}
	all["s3"] = func() store { return store{url: servers.StartS3(t).URL("locks")} }
	if servers.All { // make matrix builds an API server
		all["kubernetes"] = func() store {
			k := servers.StartKubernetes(t)
			k.AddNamespace("locks")
			return store{url: k.URL("locks")}
		}
	}
	all["mysql"] = func() store {
		return store{url: "mysql://root@" + servers.StartMariaDB(t).Addr() + "/locks"}
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
	for name, start := range stores(t) {
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
	for name, start := range stores(t) {
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
