package badday

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/proxy"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A server that hangs when the command ends is told of while there is time left, and the end of the lease is the end.
func TestServerHangsAtTheEnd(t *testing.T) {
	t.Parallel()
	s, dir := pausables(t)["redis"](), t.TempDir()
	var said bytes.Buffer
	cmd := exec.Command(binary, "run", "--at-least", "1h", "--ttl", "20s", "--also", "y", "x", "--", "sh", "-c", "echo > ready; while ! [ -e go ]; do sleep 0.02; done")
	cmd.Env, cmd.Dir, cmd.Stderr = append(os.Environ(), "LEASEHOLD_STORE="+s.url, "HOME="+dir), dir, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); !exists(filepath.Join(dir, "ready")); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the command did not start")
		}
	}
	defer s.pause()()
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v, want exit code 0", err)
	}
	for _, want := range []string{"has not answered for 5s", "Trying again until ", "may run again before its time"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("no %q in:\n%s", want, said.String())
		}
	}
}

// A job that was not begun, because the server hangs from the moment on at which it is asked, does not count as run in
// its period.
func TestServerHangsWhenAJobBegins(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"at once": {"-n"}, "waiting": {"-w", "3"}, "bounded": {"-n", "--at-most", "12h"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, dir := servers.StartRedis(t), t.TempDir()
			p := stopper{name: "job", pause: r.Pause, resume: make(chan func(), 1)}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			between := proxy.ListenAt(l, func() (asked, answered io.WriteCloser) { return &p, nothing{} }, r.Addr())
			defer between.Close()
			job := func(addr string, flags ...string) error {
				s := pausedStore{url: "redis://" + addr + "/0"}
				return s.command(dir, slices.Concat([]string{"run", "--once-per", "24h"}, flags, []string{"job", "--", "touch", "ran"})...).Run()
			}
			warm := pausedStore{url: "redis://" + r.Addr() + "/0"}
			if err := warm.command(dir, "run", "another", "--", "true").Run(); err != nil { // the server has our scripts now
				t.Fatal(err)
			}
			if err := job(between.Addr(), flags...); err == nil || exists(filepath.Join(dir, "ran")) {
				t.Fatalf("it ran: %v", err)
			}
			(<-p.resume)()
			for end := time.Now().Add(time.Minute); !exists(filepath.Join(dir, "ran")); time.Sleep(200 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("nobody runs it")
				}
				if err := job(r.Addr(), "-w", "30", "--ok-if-busy"); err != nil {
					t.Errorf("the next one: %v", err)
				}
			}
		})
	}
}

// A stopper pauses a server before it has what names a lock.
type stopper struct {
	name   string
	pause  func() (resume func())
	once   sync.Once
	resume chan func() // has room for one
}

func (s *stopper) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(s.name)) {
		s.once.Do(func() { s.resume <- s.pause() })
	}
	return len(b), nil
}

func (s *stopper) Close() error { return nil }

type nothing struct{}

func (nothing) Write(b []byte) (int, error) { return len(b), nil }
func (nothing) Close() error                { return nil }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
