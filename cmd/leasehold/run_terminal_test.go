//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A screen is a program on a terminal of its own, which leads the session.
type screen struct {
	t    *testing.T
	cmd  *exec.Cmd
	keys *os.File
	hung chan struct{} // closed when nobody has the terminal open any more

	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (c *cli) screen(program string, args ...string) *screen {
	c.t.Helper()
	keys, tty := openTerminal(c.t)
	s := &screen{t: c.t, cmd: exec.Command(program, args...), keys: keys, hung: make(chan struct{})}
	s.cmd.Env = append(os.Environ(), "LEASEHOLD_STORE="+c.store, "HOME="+c.dir,
		"PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	s.cmd.Dir = c.dir
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = tty, tty, tty
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	tty.Close()
	go s.read()
	c.t.Cleanup(func() { keys.Close() }) // hangs up
	return s
}

func openTerminal(t *testing.T) (keys, tty *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	if err := unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return keys, tty
}

func (s *screen) read() {
	defer close(s.hung)
	b := make([]byte, 1024)
	for {
		n, err := s.keys.Read(b)
		s.mu.Lock()
		s.text.Write(b[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *screen) shows() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// waitFor waits until text is on the screen.
func (s *screen) waitFor(text string) {
	s.t.Helper()
	s.waitForMatch(regexp.QuoteMeta(text))
}

// waitForMatch waits until something on the screen matches.
func (s *screen) waitForMatch(pattern string) {
	s.t.Helper()
	match := regexp.MustCompile(pattern)
	for end := time.Now().Add(patience); !match.MatchString(s.shows()); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("nothing like %q on the screen:\n%s", pattern, s.shows())
		}
	}
}

func (s *screen) typed(keys string) {
	s.t.Helper()
	if _, err := s.keys.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// end waits for the program and returns its exit code as a shell counts it.
func (s *screen) end() int {
	s.t.Helper()
	done := make(chan struct{})
	go func() {
		s.cmd.Wait()
		<-s.hung // all it wrote is on the screen
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		s.cmd.Process.Kill()
		s.t.Fatalf("it does not end:\n%s", s.shows())
	}
	return shellCode(s.cmd.ProcessState)
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
	// asks is a command that needs the keyboard.
	asks = `sh -c 'echo ready; read line; echo got $line; exit 3'`
)

func TestTerminalIsLentToTheCommand(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"alone":         "leasehold run x -- " + asks,
		"in a pipeline": "leasehold run x -- " + asks + " | cat; exit 3",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newCLI(t).screen("sh", "-c", script)
			s.waitFor("ready")
			s.typed("hello\n")
			if code := s.end(); code != 3 {
				t.Errorf("exit code %d, want 3", code)
			}
			contains(t, s.shows(), "got hello")
		})
	}
}

// TestCommandIsInTheForeground: from the start, for programs that look at that.
func TestCommandIsInTheForeground(t *testing.T) {
	t.Parallel()
	s := newCLI(t).screen("sh", "-c", "leasehold run x -- sh -c 'read pid name state parent group session tty front rest < /proc/$$/stat; exec [ $group = $front ]'")
	if code := s.end(); code != 0 {
		t.Errorf("it is in the background:\n%s", s.shows())
	}
}

// TestTerminalComesBack: the script around the run can use it again, also after a command that could not be started.
func TestTerminalComesBack(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{
		"killed":      "sh -c 'echo ready; kill -KILL $$'",
		"not started": "./job",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			if err := os.WriteFile(filepath.Join(c.dir, "job"), []byte("#!/nonexistent\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			s := c.screen("sh", "-c", "leasehold run x -- "+command+"; read line; echo script got $line")
			s.waitForMatch("ready|cannot run")
			s.typed("hello\n")
			if code := s.end(); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			contains(t, s.shows(), "script got hello")
		})
	}
}

func TestTerminalComesBackFromADeadGuardian(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	s := c.screen("sh", "-c", "leasehold run x -- sh -c 'echo $$ > pid; exec sleep 60'; read line; echo script got $line")
	syscall.Kill(parent(t, c.readInt("pid")), syscall.SIGKILL)
	s.waitFor("guardian")
	s.typed("hello\n")
	if code := s.end(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	contains(t, s.shows(), "script got hello")
}

// TestTerminalIsLentWithPipedInput: to a command that reads and sets /dev/tty, as editors
// and prompts for passwords do.
func TestTerminalIsLentWithPipedInput(t *testing.T) {
	t.Parallel()
	s := newCLI(t).screen("sh", "-c", `echo piped | leasehold run x -- sh -c '
		read a; stty -echo < /dev/tty; echo ready $a; read line < /dev/tty; stty echo < /dev/tty; echo got $line; exit 3'`)
	s.waitFor("ready piped")
	s.typed("hello\n")
	if code := s.end(); code != 3 {
		t.Errorf("exit code %d, want 3:\n%s", code, s.shows())
	}
	contains(t, s.shows(), "got hello")
}

// TestControlCEndsTheWholeJob: also where the command has the terminal to itself, because
// the script around it is meant too. bash goes on after what does not die of the signal.
func TestControlCEndsTheWholeJob(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"sh", "bash"} {
		for name, script := range map[string]string{
			"alone":               "leasehold run x -- sh -c 'echo ready; exec sleep 60'; echo after",
			"in a pipeline":       "leasehold run x -- sh -c 'echo ready; exec sleep 60' | cat; echo after",
			"reads in a pipeline": "leasehold run x -- sh -c 'stty -echo < /dev/tty; echo ready; read line' | cat; echo after",
			"with piped input":    "echo | leasehold run x -- sh -c 'stty -echo < /dev/tty; echo ready; exec sleep 60'; echo after",
			"into a file":         "leasehold run x -- sh -c 'echo ready >&2; exec sleep 60' > log; echo after",
			"nested":              "leasehold run y -- leasehold run x -- sh -c 'echo ready; exec sleep 60'; echo after",
			"caught":              "leasehold run x -- sh -c 'trap \"exit 130\" INT; echo ready; sleep 60 & wait'; echo after",
			"caught, not lent":    "leasehold run x -- sh -c 'trap \"exit 130\" INT; echo ready >&2; sleep 60 & wait' > log; echo after",
			"leading":             "leasehold lead x -- sh -c 'echo ready; exec sleep 60'; echo after",
		} {
			t.Run(shell+" "+name, func(t *testing.T) {
				t.Parallel()
				if _, err := exec.LookPath(shell); err != nil {
					t.Skip(err)
				}
				c := newCLI(t)
				c.controlC("ready", shell, script)
				c.wantRun(0, "-w", "5", "x", "--", "true")
			})
		}
		for name, script := range map[string]string{
			"waits to run":     "leasehold -v run x -- true; echo after",
			"waits to lead":    "leasehold -v lead x -- true; echo after",
			"waits to acquire": "leasehold -v acquire x; echo after",
		} {
			t.Run(shell+" "+name, func(t *testing.T) {
				t.Parallel()
				if _, err := exec.LookPath(shell); err != nil {
					t.Skip(err)
				}
				c := newCLI(t)
				c.hold("x")
				c.controlC("waiting for x", shell, script)
			})
		}
	}
}

// controlC runs a script, types Ctrl-C when ready is on the screen, and checks that the
// script does not go on.
func (c *cli) controlC(ready, shell, script string) {
	c.t.Helper()
	s := c.screen(shell, "-c", script)
	s.waitFor(ready)
	s.typed(ctrlC)
	if code := s.end(); code != 128+int(syscall.SIGINT) {
		c.t.Errorf("exit code %d, want 130:\n%s", code, s.shows())
	}
	if strings.Contains(s.shows(), "after") {
		c.t.Error("the script went on")
	}
}

func TestControlZSuspendsTheWholeJob(t *testing.T) {
	t.Parallel()
	s := newCLI(t).screen("sh", "-c", "set -m; leasehold run --ttl 60s x -- "+asks+"; echo suspended; fg; echo code $?")
	s.waitFor("ready")
	s.typed(ctrlZ)
	s.waitFor("suspended")
	s.typed("hello\n")
	s.waitFor("code 3")
	contains(t, s.shows(), "got hello")
	s.end()
}

// TestControlZWithoutJobControl: where nobody could resume the job, the kernel would not
// suspend it without us either.
func TestControlZWithoutJobControl(t *testing.T) {
	t.Parallel()
	s := newCLI(t).screen(binary, "run", "x", "--", "sh", "-c", "echo ready; read line; echo got $line; exit 3")
	s.waitFor("ready")
	s.typed(ctrlZ)
	s.waitFor("^Z")
	s.typed("hello\n")
	if code := s.end(); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	contains(t, s.shows(), "got hello")
}

// TestSuspendedJobLosesItsLease: nobody renews it, and the guardian ends the command.
func TestSuspendedJobLosesItsLease(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	s := c.screen("sh", "-c", "set -m; leasehold run --ttl 5s x -- sh -c 'echo ready; echo $$ > pid; read line'; echo suspended; echo > out; read line; fg; echo code $?")
	s.waitFor("ready")
	pid := c.readInt("pid")
	s.typed(ctrlZ)
	s.waitFor("suspended")
	c.wantRun(0, "-w", "40", "x", "--", "true")
	if syscall.Kill(pid, 0) == nil {
		t.Error("the command is alive")
	}
	s.typed("\n")
	s.waitFor("code 75")
	s.end()
}
