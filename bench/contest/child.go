package contest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// childEnv is the environment variable that names the part of a process that a scenario starts.
const childEnv = "LEASEHOLD_BENCH_CHILD"

// An order tells a child what to do. It is the first line of its input.
type order struct {
	Addr    string // address of the server
	Lock    string // name of the competitor
	Name    string // name of the lock
	Path    string // path of the section
	Number  int    // number of the child
	Workers int
	Leases  int
	Lasts   time.Duration
}

// A child is another process of this test binary. It writes its results as lines of JSON, and ends
// when its input does.
type child struct {
	tb  testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Again starts this test binary once more, with env added to its environment, by which its TestMain
// recognizes its task. It returns the process's input and output. The caller must wait for its end.
func Again(tb testing.TB, env string) (*exec.Cmd, io.WriteCloser, *bufio.Reader) {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	// Otherwise the race detector would make each child wait for a second at its end.
	cmd.Env = append(os.Environ(), env, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	return cmd, in, bufio.NewReader(out)
}

// startChild starts a process for the part, and sends its order.
func startChild(tb testing.TB, part string, o order) *child {
	tb.Helper()
	cmd, in, out := Again(tb, childEnv+"="+part)
	c := &child{tb: tb, cmd: cmd, in: in, out: out}
	tb.Cleanup(c.end)
	c.tell(o)
	return c
}

// end ends the child, if it still runs, and waits for it.
func (c *child) end() {
	c.tb.Helper()
	if c.cmd.ProcessState != nil {
		return
	}
	c.in.Close()
	_, _ = io.Copy(io.Discard, c.out) // until it ends
	if err := c.cmd.Wait(); err != nil {
		c.tb.Errorf("a child ended: %v", err)
	}
}

func (c *child) tell(v any) {
	c.tb.Helper()
	if err := json.NewEncoder(c.in).Encode(v); err != nil {
		c.tb.Fatalf("tell a child: %v", err)
	}
}

// hears is hear with a time limit. It reports whether there was an answer. A child without one is
// killed.
func (c *child) hears(v any, within time.Duration) bool {
	c.tb.Helper()
	late := time.AfterFunc(within, func() { _ = c.cmd.Process.Kill() })
	line, err := c.out.ReadBytes('\n')
	if !late.Stop() {
		_ = c.cmd.Wait() // it was killed
		return false
	}
	c.understand(line, err, v)
	return true
}

// hear reads the child's next answer into v.
func (c *child) hear(v any) {
	c.tb.Helper()
	line, err := c.out.ReadBytes('\n')
	c.understand(line, err, v)
}

func (c *child) understand(line []byte, err error, v any) {
	c.tb.Helper()
	if err == nil {
		err = json.Unmarshal(line, v)
	}
	if err != nil {
		c.tb.Fatalf("hear a child: %q: %v", line, err)
	}
}

// A parent is the parent, as a child sees it.
type parent struct{ in *bufio.Scanner }

// play runs a child.
func (e *Engine) play(part string) error {
	p := &parent{bufio.NewScanner(os.Stdin)}
	if !p.wait() {
		return errors.New("no order")
	}
	var o order
	if err := json.Unmarshal(p.in.Bytes(), &o); err != nil {
		return err
	}
	switch part {
	case distantPart:
		return forward(p, o)
	case awakePart:
		return keepAwake(p)
	}
	l, err := e.open(o.Lock, o.Addr)
	if err != nil {
		return err
	}
	defer l.close()
	switch part {
	case contendPart:
		return contend(p, o, l)
	case waitPart:
		return wait(p, o, l)
	case holdPart:
		return hold(p, o, l)
	}
	return fmt.Errorf("nobody plays %q", part)
}

// wait waits for the next line. It reports false if there is none.
func (p *parent) wait() bool { return p.in.Scan() }

func (p *parent) tell(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Printf("%s\n", line)
	return err
}
