// Package servers starts real servers for tests, on free ports of 127.0.0.1, with their data in
// temporary folders. They are killed, by process id, when the test ends or the test binary dies.
// Modules of engines use it in their tests, so it requires only the standard library. It talks to
// servers directly, or by the clients that come with them.
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

// All is set by make matrix. It enables tests that take minutes, such as building a server.
var All = os.Getenv("LEASEHOLD_ALL") != ""

// OnlyWithAll skips such a test elsewhere.
func OnlyWithAll(t testing.TB) {
	t.Helper()
	if !All {
		t.Skip("make matrix runs it, by LEASEHOLD_ALL=1: it takes minutes")
	}
}

// Long skips t in the short lane, which make test runs. why says what t costs, and which test of
// the same kind stays in the lane.
func Long(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: " + why + "; make test-all runs it")
	}
}

// Need returns the path of binary, from the build of engine that the environment names, else from
// the system. If it is missing, the test fails, and the message says how to install it.
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

// NeedPython returns the path of the system's Python, with the client library of that name
// installed.
func NeedPython(t testing.TB, library string) string {
	t.Helper()
	const python = "/usr/bin/python3" // another one on the path lacks the system's libraries
	need(t, "python-"+library, python, func() error { return exec.Command(python, "-c", "import "+library).Run() })
	return python
}

// need fails t unless install-tools has installed engine.
func need(t testing.TB, engine, what string, there func() error) {
	t.Helper()
	if err := there(); err != nil {
		t.Fatalf("%s is missing (%v): install all that tests need by make tools, or this by scripts/install-tools %s", what, err, engine)
	}
}

// Ports of servers are below those that Linux uses for outgoing connections. So are the ports of a
// cluster's bus, which are busOffset higher.
const lowestPort, portsEnd, busOffset = 11000, 20000, 10000

// FreePorts returns n ports that nobody listens on. No other test gets them until t ends, because
// FreePorts holds the UDP ports of the same numbers, which no server here uses.
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

// A Process is a running server.
type Process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	log  *os.File
	gone chan struct{}
}

// Start starts cmd. The system kills it when this process ends. The channel receives its exit.
func Start(cmd *exec.Cmd) (ended <-chan error, err error) {
	cmd.SysProcAttr = mortal()
	return startThen(cmd, func() error { return nil })
}

// startThen starts a mortal process, and calls then on the thread that has started it.
func startThen(cmd *exec.Cmd, then func() error) (ended <-chan error, err error) {
	if err := startOnLastingThread(cmd, then); err != nil {
		if cmd.Process != nil {
			_ = cmd.Process.Kill() // it was started, but then failed
			_ = cmd.Wait()
		}
		return nil, err
	}
	end := make(chan error, 1)
	go func() { end <- cmd.Wait() }()
	return end, nil
}

// A server can be restarted with the data it has.
type server struct {
	*Process
	Port   int        // for clients
	life   testing.TB // the server ends with it
	dir    string     // of its log and other files
	binary string
	args   []string
	env    []string     // nil: this process's
	user   string       // the user that runs it, if we are root and it refuses to run as root; "": our user
	serves func() error // returns nil when it is ready
}

// Start starts the server again after Kill or Stop, and returns when it is ready.
func (s *server) Start(t testing.TB) {
	t.Helper()
	s.Begin()
	s.Ready()
}

// Begin is like Start, but does not wait: a member without a quorum is not ready.
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

// Addr returns host and port for clients.
func (s *server) Addr() string { return address(s.Port) }

// Data returns the folder of the server's data.
func (s *server) Data() string { return filepath.Join(s.dir, "data") }

// Forget deletes the data of a server that is not running.
func (s *server) Forget() {
	s.life.Helper()
	if err := os.RemoveAll(s.Data()); err != nil {
		s.life.Fatalf("delete the data of %s: %v", s.binary, err)
	}
}

// start runs a server with an environment; nil: this process's.
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
		<-ended // it was usually killed
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
	p.until("ready", func() error { return listens(addr) })
	return p
}

// write writes a file of a server, whose folder keeps other users out.
func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatalf("write a file of a server: %v", err)
	}
}

// Signal sends sig to the server.
func (p *Process) Signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("signal %v to %s: %v", sig, p.name, err)
	}
}

// Pause stops the server until resume is called. It returns when all threads are stopped.
func (p *Process) Pause() (resume func()) {
	p.t.Helper()
	return locktest.PauseProcess(p.t, p.cmd.Process)
}

// PauseAll stops all of them until resume is called. It returns when all threads are stopped.
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

// Kill kills the server, if it still runs, and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may be gone
	<-p.gone
}

// Stop asks the server to exit and waits until it is gone.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(readyWithin):
		p.t.Fatalf("%s does not end", p.name)
	}
}

// Pid returns the server's process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// until polls until ok returns nil. After a while it fails t with the last error.
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

// first polls until one of all satisfies is, and returns it. After a while it fails t.
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

// dial connects for one question, which must be answered soon.
func dial(addr string) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(10 * time.Second))
}

// listens returns an error unless a server accepts connections.
func listens(addr string) error {
	conn, err := dial(addr)
	if err == nil {
		conn.Close()
	}
	return err
}

// get returns a page of a server, or an error unless the status is 200.
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
