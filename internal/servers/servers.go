// Package servers starts real servers for tests, on free ports of 127.0.0.1, with their
// data in temporary folders. They end with the test, by process id, and also when the
// test binary dies. Modules of engines use it in their tests, so that it needs the standard
// library only: it speaks with servers by itself, or by the clients that come with them.
package servers

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/locktest"
)

// readyWithin is how long a server may take to start on a busy machine.
const readyWithin = 2 * time.Minute

// All is set where the tests run too that need minutes, such as the build of a server: by make matrix.
var All = os.Getenv("LEASEHOLD_ALL") != ""

// OnlyWithAll skips one of them elsewhere.
func OnlyWithAll(t testing.TB) {
	t.Helper()
	if !All {
		t.Skip("make matrix runs it, by LEASEHOLD_ALL=1: it takes minutes")
	}
}

// Long skips t in the short lane, which make test runs: why is what it takes, and what of the same kind stays there.
func Long(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: " + why + "; make test-all runs it")
	}
}

// Need returns the path of binary: that of the build of engine which the environment names,
// else the system's. A test without it fails, and is told what installs it.
func Need(t testing.TB, engine, binary string) string {
	t.Helper()
	if root := Root(engine); root != "" {
		return filepath.Join(root, "bin", binary)
	}
	var path string
	need(t, engine, binary, func() (err error) {
		path, err = exec.LookPath(binary)
		return err
	})
	return path
}

// NeedPython returns the path of the system's Python, which then has the client library of
// that name.
func NeedPython(t testing.TB, library string) string {
	t.Helper()
	const python = "/usr/bin/python3" // another one on the path has none of the system's libraries
	need(t, "python-"+library, python, func() error { return exec.Command(python, "-c", "import "+library).Run() })
	return python
}

// need fails t unless what install-tools brings for engine is there.
func need(t testing.TB, engine, what string, there func() error) {
	t.Helper()
	if err := there(); err != nil {
		t.Fatalf("%s is missing (%v): install all that tests need by make tools, or this by scripts/install-tools %s", what, err, engine)
	}
}

// Ports of servers are below those that Linux takes for outgoing connections, and so are
// those of a cluster's bus, which are busOffset higher.
const lowestPort, portsEnd, busOffset = 11000, 20000, 10000

// FreePorts returns n ports that nobody listens on, and that no other test is given until t
// ends: it holds the UDP ports of the same numbers, which no server here uses.
func FreePorts(t testing.TB, n int) []int {
	t.Helper()
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		if tries > 1000 {
			t.Fatal("no free port was found")
		}
		port := lowestPort + rand.N(portsEnd-lowestPort)
		mark, err := net.ListenPacket("udp", address(port))
		if err != nil {
			continue
		}
		if !free(port) || !free(port+busOffset) {
			mark.Close()
			continue
		}
		t.Cleanup(func() { mark.Close() })
		ports = append(ports, port)
	}
	return ports
}

// free reports whether nobody listens on port.
func free(port int) bool {
	l, err := net.Listen("tcp", address(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// A Process is a server that runs.
type Process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	log  *os.File
	gone chan struct{}
}

// Start starts cmd, which the system kills when this process ends, and tells when it has ended.
func Start(cmd *exec.Cmd) (ended <-chan error, err error) {
	cmd.SysProcAttr = mortal()
	return startThen(cmd, func() error { return nil })
}

// startThen is Start of a process that is mortal, and calls then by the thread that has started cmd.
func startThen(cmd *exec.Cmd, then func() error) (ended <-chan error, err error) {
	if err := startOnLastingThread(cmd, then); err != nil {
		if cmd.Process != nil {
			_ = cmd.Process.Kill() // what was started and then failed
			_ = cmd.Wait()
		}
		return nil, err
	}
	end := make(chan error, 1)
	go func() { end <- cmd.Wait() }()
	return end, nil
}

// A server is one that can be started again, with the data that it has by then.
type server struct {
	*Process
	Port   int        // for clients
	life   testing.TB // the server ends with it
	dir    string     // of its log, and of what else it has
	binary string
	args   []string
	env    []string     // nil: as ours
	user   string       // whom it runs as where we are root, which it refuses to run as; "": as we do
	serves func() error // returns nil when it is ready
}

// Start starts the server again after Kill or Stop, and returns when it is ready.
func (s *server) Start(t testing.TB) {
	t.Helper()
	s.Begin()
	s.Ready()
}

// Begin is Start that does not wait: a member without a quorum is not ready.
func (s *server) Begin() {
	s.life.Helper()
	binary, args := s.binary, s.args
	if s.user != "" {
		binary, args = asUser(s.user, binary, args...)
	}
	s.Process = start(s.life, s.dir, s.env, binary, args...)
}

// Ready returns when the server is ready.
func (s *server) Ready() {
	s.life.Helper()
	s.until("ready", s.serves)
}

// Addr is host and port for clients.
func (s *server) Addr() string { return address(s.Port) }

// Data is the folder of the server's data.
func (s *server) Data() string { return filepath.Join(s.dir, "data") }

// Forget deletes the data of a server that does not run.
func (s *server) Forget() {
	s.life.Helper()
	if err := os.RemoveAll(s.Data()); err != nil {
		s.life.Fatalf("delete the data of %s: %v", s.binary, err)
	}
}

// start runs a server with an environment; nil: ours.
func start(t testing.TB, dir string, env []string, name string, args ...string) *Process {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(dir, filepath.Base(name)+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatalf("open a log: %v", err)
	}
	p := &Process{t: t, name: name, cmd: exec.Command(name, args...), log: log, gone: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = dir, env, log, log
	ended, err := Start(p.cmd)
	if err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		<-ended // most are killed
		log.Close()
		close(p.gone)
	}()
	t.Cleanup(p.Kill)
	return p
}

// StartCommand starts a program that listens at addr, and returns when it does.
func StartCommand(t testing.TB, binary, addr string, args ...string) *Process {
	t.Helper()
	p := start(t, DataDir(t), nil, binary, args...)
	p.until("ready", func() error {
		conn, err := dial(addr)
		if err == nil {
			conn.Close()
		}
		return err
	})
	return p
}

// Signal sends sig to the server.
func (p *Process) Signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("signal %v to %s: %v", sig, p.name, err)
	}
}

// Pause stops the server until resume is called. It returns when all threads stand.
func (p *Process) Pause() (resume func()) {
	p.t.Helper()
	return locktest.PauseProcess(p.t, p.cmd.Process)
}

// PauseAll stops all of them until resume is called. It returns when all threads stand.
func PauseAll[P interface{ Pause() (resume func()) }](all []P) (resume func()) {
	var resumes []func()
	for _, p := range all {
		resumes = append(resumes, p.Pause())
	}
	return func() {
		for _, resume := range resumes {
			resume()
		}
	}
}

// Kill ends the server at once, if it still runs, and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may be gone
	<-p.gone
}

// Stop asks the server to end and waits until it is gone.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(readyWithin):
		p.t.Fatalf("%s does not end", p.name)
	}
}

// Pid is the server's process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// until polls until ok returns nil, and fails t with its last error after a while.
func (p *Process) until(what string, ok func() error) {
	p.t.Helper()
	var err error
	for end := time.Now().Add(readyWithin); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = ok(); err == nil {
			return
		}
		select {
		case <-p.gone:
			log, _ := os.ReadFile(p.log.Name()) // without it the message is shorter
			p.t.Fatalf("%s ended while it was to become %s: %v\n%s", p.name, what, err, tail(string(log)))
		default:
		}
	}
	p.t.Fatalf("%s is not %s after %v: %v", p.name, what, readyWithin, err)
}

func tail(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// first is the first of all that is as it should be, or fails t after a while.
func first[S any](t testing.TB, all []S, what string, is func(S) bool) (one S) {
	t.Helper()
	for end := time.Now().Add(readyWithin); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, one := range all {
			if is(one) {
				return one
			}
		}
	}
	t.Fatalf("no server %s after %v", what, readyWithin)
	return one
}

// dial connects for one question, which is to be answered soon.
func dial(addr string) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(10 * time.Second))
}

// get returns what a page of a server says, which is an error unless it comes with status 200.
func get(url string) ([]byte, error) {
	resp, err := (&http.Client{Timeout: time.Second}).Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", url, resp.Status, text)
	}
	return text, err
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
