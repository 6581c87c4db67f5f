package badday

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// The command leads again, by itself, when a password was withdrawn before the new one was there.
func TestCommandLeadsAgain(t *testing.T) {
	t.Parallel()
	server, r := redisWithPassword(t)
	p := servers.StartProxy(t, r.addr)
	m := &mount{t: t, dir: t.TempDir()}
	m.swap(r.files(0))
	terms := filepath.Join(t.TempDir(), "terms")
	cmd := exec.Command(binary, "--store", r.url(p.Addr(), m.dir), "lead", "--ttl", "4s", "led", "-c", "echo term >>'"+terms+"'; exec sleep 1000")
	ended, err := servers.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); <-ended })
	leads := func(times int) {
		t.Helper()
		for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
			text, _ := os.ReadFile(terms) // it is not there before the first term
			n := strings.Count(string(text), "term")
			switch {
			case n == times:
				return
			case n > times, time.Now().After(end):
				t.Fatalf("%d terms; want %d", n, times)
			}
		}
	}
	leads(1)
	r.serve(1)
	p.Reset()
	for end := time.Now().Add(within); server.Must(t, "EXISTS", "lock:led") == "1"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the lease does not end")
		}
	}
	m.swap(r.files(1))
	leads(2)
}
