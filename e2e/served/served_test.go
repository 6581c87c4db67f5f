// Package served runs the conformance suite, and faults, through real instances of "leasehold
// serve" behind a balancer.
package served

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/described"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/internal/apart"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// binaryEnv names the command for the processes in which tests run apart, and childEnv is set in
// those that the suite starts.
const binaryEnv, childEnv = "LEASEHOLD_TEST_BINARY", "LEASEHOLD_LOCKTEST_CHILD"

// TestMain also runs the child processes of the conformance suite. The command is built once.
func TestMain(m *testing.M) {
	if os.Getenv(binaryEnv)+os.Getenv(childEnv) == "" {
		dir, err := os.MkdirTemp("", "leasehold-served-")
		if err == nil {
			defer os.RemoveAll(dir)
			err = build(filepath.Join(dir, "leasehold"))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	locktest.Main(m, openAddress)
}

func build(path string) error {
	if err := servers.Program(path, "github.com/leasehold-go/leasehold/cmd/leasehold"); err != nil {
		return err
	}
	return os.Setenv(binaryEnv, path)
}

func openAddress(url string) (driver.Driver, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return httplock.OpenURL(ctx, url)
}

// An instance is one process of the service.
type instance struct {
	command string
	store   string
	port    int
	options []string           // after those that all have
	client  *http.Client       // asks whether it is ready; nil: the default one
	clock   *servers.WallClock // nil: it has the machine's
	cmd     *exec.Cmd
	ended   <-chan error
}

func (i *instance) addr() string { return "127.0.0.1:" + strconv.Itoa(i.port) }

func (i *instance) start(t testing.TB) {
	t.Helper()
	i.prepare()
	var err error
	if i.ended, err = servers.Start(i.cmd); err != nil {
		t.Fatal(err)
	}
	i.becomesReady(t)
}

func (i *instance) prepare() {
	i.cmd = exec.Command(i.command, append([]string{"--store", i.store, "serve", "--listen", i.addr()}, i.options...)...)
	i.cmd.Stderr = os.Stderr
}

// startWithClock is start with a clock that the test moves.
func (i *instance) startWithClock(t testing.TB) {
	t.Helper()
	i.prepare()
	var err error
	if i.clock, i.ended, err = servers.StartWithClock(i.cmd); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("clocks are moved on Linux on amd64 alone")
	}
	if err != nil {
		t.Fatal(err)
	}
	i.becomesReady(t)
}

func (i *instance) becomesReady(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		resp, err := i.asks()
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("the instance is not ready: %v", err)
		}
	}
}

// asks whether it is ready.
func (i *instance) asks() (*http.Response, error) {
	if i.client != nil {
		return i.client.Get("https://" + i.addr() + "/readyz")
	}
	return http.Get("http://" + i.addr() + "/readyz")
}

// kill ends it as kill -9 does.
func (i *instance) kill() {
	_ = i.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
	<-i.ended
}

// A service is two instances over one store, and their balancer, which has all that passes held
// against the OpenAPI description.
type service struct {
	instances []*instance
	url       string
}

func serve(t *testing.T, store string) *service {
	t.Helper()
	return serveBy(t, store, (*instance).start)
}

// serveBy is serve whose instances are started so.
func serveBy(t *testing.T, store string, start func(*instance, testing.TB)) *service {
	t.Helper()
	s, command := &service{}, os.Getenv(binaryEnv)
	var targets []string
	for _, port := range servers.FreePorts(t, 2) {
		i := &instance{command: command, store: store, port: port}
		start(i, t)
		t.Cleanup(func() { i.kill() })
		s.instances, targets = append(s.instances, i), append(targets, i.addr())
	}
	s.url = "http://" + described.Balance(t, targets...)
	return s
}

// harness is of the service: what restarts are its instances.
func (s *service) harness() locktest.Harness {
	return locktest.Harness{
		Open: func(t testing.TB) driver.Driver {
			d, err := openAddress(s.url)
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Address:       s.url,
		NeverShortens: true,
		Restart: func(t testing.TB) {
			for _, i := range s.instances { // one is always there
				i.kill()
				i.start(t)
			}
		},
		ShownOwner:     httplock.Shown,
		CallGoroutines: 6, // three for a connection at the balancer, two here
	}
}

// TestRedisConformance runs the cases for which engine/httplock's run, on services in its own process, lacks something.
func TestRedisConformance(t *testing.T) { apart.RunSome(t, cases(true), onRedis) }

func TestRedisConformanceOfTheRest(t *testing.T) {
	servers.Long(t, "engine/httplock runs these cases, on services in its own process")
	apart.RunSome(t, cases(false), onRedis)
}

// cases is a pattern of the cases that disturb a store, or need other processes, or of the others.
func cases(disturb bool) string {
	const what = locktest.NeedPause | locktest.NeedRestart | locktest.NeedAddress | locktest.NeedFlushState
	var names []string
	for _, c := range locktest.Cases() {
		if (c.Needs&what != 0) == disturb {
			names = append(names, c.Name+"$")
		}
	}
	return strings.Join(names, "|")
}

func onRedis(t *testing.T) {
	r := servers.StartRedis(t)
	h := serve(t, "redis://"+r.Addr()).harness()
	h.FlushState = func(t testing.TB) { r.Must(t, "FLUSHALL") }
	h.Pause = func(testing.TB) (resume func()) { return r.Pause() }
	locktest.Run(t, h)
}

func TestPostgresConformance(t *testing.T) {
	servers.OnlyWithAll(t)
	apart.Run(t, func(t *testing.T) {
		p := servers.StartPostgres(t)
		h := serve(t, "postgres://postgres@"+p.Addr()+"/postgres").harness()
		h.FlushState = func(t testing.TB) { p.Must(t, "DELETE FROM leasehold_locks") }
		h.Pause = func(testing.TB) (resume func()) { return p.Pause() }
		locktest.Run(t, h)
	})
}

func TestEtcdConformance(t *testing.T) {
	servers.OnlyWithAll(t)
	apart.Run(t, func(t *testing.T) {
		e := servers.StartEtcd(t, servers.EtcdCurrent)
		h := serve(t, "etcd://"+e.Addr()).harness()
		h.Pause = func(testing.TB) (resume func()) { return e.Pause() }
		locktest.Run(t, h)
	})
}
