package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// childEnv names the part that a process started by a benchmark plays.
const childEnv = "LEASEHOLD_BENCH_CHILD"

// An order is what a child is to do, the first line of its input.
type order struct {
	Addr    string // of Redis
	Lock    string // which locker
	Name    string // of the lock
	Path    string // of the section
	Number  int    // which child
	Workers int
	Lasts   time.Duration
}

// A child is a process of this test binary. It says what it has as lines of JSON, and
// ends when its input does.
type child struct {
	tb  testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startChild starts a process that runs the test called part, and gives it its order.
func startChild(tb testing.TB, part string, o order) *child {
	tb.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+part+"$")
	cmd.Env = append(os.Environ(), childEnv+"="+part)
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
	c := &child{tb: tb, cmd: cmd, in: in, out: bufio.NewReader(out)}
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
	_, _ = io.Copy(io.Discard, c.out) // to its end
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

// hear reads the child's next answer into v.
func (c *child) hear(v any) {
	c.tb.Helper()
	line, err := c.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, v)
	}
	if err != nil {
		c.tb.Fatalf("hear a child: %q: %v", line, err)
	}
}

// A parent is the other end of a child.
type parent struct {
	t  *testing.T
	in *bufio.Scanner
}

// asChild returns the order when the test is the part of a child, and skips it otherwise.
func asChild(t *testing.T) (*parent, order) {
	t.Helper()
	if os.Getenv(childEnv) != t.Name() {
		t.Skip("is a process of BenchmarkRedis")
	}
	p := &parent{t, bufio.NewScanner(os.Stdin)}
	if !p.wait() {
		t.Fatal("no order")
	}
	var o order
	if err := json.Unmarshal(p.in.Bytes(), &o); err != nil {
		t.Fatal(err)
	}
	return p, o
}

// wait waits for the next line; false: the parent wants no more.
func (p *parent) wait() bool { return p.in.Scan() }

func (p *parent) tell(v any) {
	p.t.Helper()
	line, err := json.Marshal(v)
	if err != nil {
		p.t.Fatal(err)
	}
	fmt.Printf("%s\n", line)
}
