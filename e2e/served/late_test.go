package served

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// stores that several instances share, and that keep the owners of late calls out.
var sharedStores = map[string]func(t *testing.T) string{
	"redis": func(t *testing.T) string { return "redis://" + servers.StartRedis(t).Addr() },
	"postgresql": func(t *testing.T) string {
		return "postgres://postgres@" + servers.StartPostgres(t).Addr() + "/postgres"
	},
}

// pair starts two instances over one store.
func pair(t *testing.T, store string) (a, b *instance) {
	t.Helper()
	ports := servers.FreePorts(t, 2)
	var all []*instance
	for _, port := range ports {
		i := &instance{command: os.Getenv(binaryEnv), store: store, port: port}
		i.start(t)
		t.Cleanup(i.kill)
		all = append(all, i)
	}
	return all[0], all[1]
}

// A late call is one that waits in the kernel for its instance, which stands still.
type late struct {
	conn   net.Conn
	answer *bufio.Reader
}

// stands stops the instance, and leaves a call for it on a connection that it has accepted before.
func (i *instance) stands(t *testing.T, path, body string) *late {
	t.Helper()
	conn, err := net.Dial("tcp", i.addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	l := &late{conn, bufio.NewReader(conn)}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", wire.Features, i.addr())
	l.read(t, nil)
	if err := i.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	claimtest.Eventually(t, "the instance stands still", func() bool { return i.isStopped(t) })
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, i.addr(), len(body), body)
	return l
}

// isStopped reports whether all threads of the instance have stopped: the signal takes its time.
func (i *instance) isStopped(t *testing.T) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", i.cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		t.Skip("the system does not tell when a process has stopped")
	}
	for _, path := range threads {
		stat, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(stat), ") T ") {
			return false
		}
	}
	return true
}

func (i *instance) goesOn(t *testing.T) {
	t.Helper()
	if err := i.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

func (l *late) read(t *testing.T, into any) int {
	t.Helper()
	l.conn.SetReadDeadline(time.Now().Add(time.Minute))
	resp, err := http.ReadResponse(l.answer, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if into == nil {
		into = &struct{}{}
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// call makes a call and returns its status.
func (i *instance) call(t *testing.T, path, body string, args ...any) (int, wire.Answer) {
	t.Helper()
	resp, err := http.Post("http://"+i.addr()+path, "application/json", strings.NewReader(fmt.Sprintf(body, args...)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var a wire.Answer
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, a
}

func (i *instance) must(t *testing.T, path, body string, args ...any) {
	t.Helper()
	if status, a := i.call(t, path, body, args...); status != http.StatusOK {
		t.Fatalf("%s: %d %+v", path, status, a)
	}
}

// TestLateAcquireTakesNothing: an instance that stood still serves an acquire after the release of the same caller was
// answered by another. Nobody would release what it took.
func TestLateAcquireTakesNothing(t *testing.T) {
	t.Parallel()
	const acquire, release = `{"name":%q,"owner":%[1]q,"ttl_ms":600000,"caller":"c","call":%d}`, `{"name":%q,"owner":%[1]q,"caller":"c","call":%d}`
	for name, store := range sharedStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := pair(t, store(t))
			for _, granted := range []bool{true, false} {
				for _, closed := range []bool{true, false} {
					name, calls := fmt.Sprintf("granted=%t,closed=%t", granted, closed), 2
					l := a.stands(t, wire.Acquire, fmt.Sprintf(acquire, name, 1))
					if closed {
						l.conn.Close()
					}
					if granted {
						b.must(t, wire.Acquire, acquire, name, calls)
						calls++
					}
					if status, a := b.call(t, wire.Release, release, name, calls); status == http.StatusServiceUnavailable {
						t.Fatalf("release: %+v", a)
					}
					a.goesOn(t)
					if !closed {
						var got wire.Answer
						if status := l.read(t, &got); status != http.StatusGone || got.Code != wire.CodeUsed {
							t.Errorf("%s: the late call is answered with %d %+v", name, status, got)
						}
					}
					a.must(t, wire.Acquire, `{"name":"after %[1]s","owner":%[1]q,"ttl_ms":60000}`, name) // it has served what came before
					b.must(t, wire.Acquire, `{"name":%q,"owner":"another","ttl_ms":600000}`, name)
				}
			}
		})
	}
}

// TestInstanceThatStoodStillServesNothingOld: what came while an instance stood still for long is not served: the mark of
// the release may be over.
func TestInstanceThatStoodStillServesNothingOld(t *testing.T) {
	t.Parallel()
	a, b := pair(t, sharedStores["redis"](t))
	const claim = `{"name":"n","owner":"o","ttl_ms":600000}`
	l := a.stands(t, wire.Acquire, claim)
	b.must(t, wire.Acquire, claim)
	b.must(t, wire.Release, `{"name":"n","owner":"o"}`) // uncounted, so that it leaves no mark
	time.Sleep(18 * time.Second)                        // above callAge of package serve and what it takes for a standstill
	a.goesOn(t)
	var got wire.Answer
	if status := l.read(t, &got); status != http.StatusServiceUnavailable || got.Code != wire.CodeTooOld {
		t.Errorf("the old call is answered with %d %+v", status, got)
	}
	b.must(t, wire.Acquire, `{"name":"n","owner":"p","ttl_ms":600000}`)
	servedAgain := func() bool {
		status, _ := a.call(t, wire.Acquire, `{"name":"m","owner":"o","ttl_ms":600000}`)
		return status == http.StatusOK
	}
	claimtest.Eventually(t, "calls are served again", servedAgain)
}
