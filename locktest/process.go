package locktest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

var processCases = []Case{
	{Name: "KilledHolderFreesWithinTheTTL", Needs: NeedAddress, Run: killedHolderFreesWithinTheTTL},
	{Name: "StoppedHolderEndsWhenItResumes", Needs: NeedAddress, Run: stoppedHolderEndsWhenItResumes},
	{Name: "ProcessThatReleasedFreesAtOnce", Needs: NeedAddress, Run: processThatReleasedFreesAtOnce},
	{Name: "EveryProcessIsServed", Needs: NeedAddress, Alone: true, Run: everyProcessIsServed},
	{Name: "StormOfKills", Needs: NeedAddress, Alone: true, Run: stormOfKills},
}

// A child is another process that uses the engine.
type child struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr *bytes.Buffer // readable when gone is closed
	gone   chan struct{} // closed when the process has ended, and all its output is in told

	mu   sync.Mutex
	told []event // guarded by mu
	seen int     // number of events that next has passed
}

// startChild runs the test binary again as a child of the suite. It waits until the child has
// opened the engine.
func startChild(t testing.TB, h Harness) *child {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatalf("the test binary: %v", err)
	}
	// -test.run=^$ is for a binary without Main: otherwise the child would run all tests, including
	// this one.
	c := &child{t: t, cmd: exec.Command(binary, "-test.run=^$"), stderr: new(bytes.Buffer), gone: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), childEnv+"="+h.Address)
	c.cmd.Stderr = c.stderr
	c.in, err = c.cmd.StdinPipe()
	if err != nil {
		t.Fatalf("pipe to a child: %v", err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatalf("pipe from a child: %v", err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatalf("start a child: %v", err)
	}
	go c.read(out)
	t.Cleanup(func() { c.kill() })
	c.next("ready", callLimit)
	return c
}

// read collects the output of the child, and waits for its end.
func (c *child) read(out io.Reader) {
	defer close(c.gone)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Event != "" {
			c.mu.Lock()
			c.told = append(c.told, e)
			c.mu.Unlock()
		}
	}
	_ = c.cmd.Wait() // most children are killed
}

// all returns all events of the child so far.
func (c *child) all() []event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.told)
}

// next returns the next event of a kind. It passes over others, except failures.
func (c *child) next(kind string, limit time.Duration) event {
	c.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(pollEvery) {
		gone := c.ended()
		for _, e := range c.all()[c.seen:] {
			c.seen++
			if e.Event == "failed" {
				c.t.Fatalf("the child failed while %q was expected of it: %s", kind, e.Error)
			}
			if e.Event == kind {
				return e
			}
		}
		if gone {
			c.t.Fatalf("the child ended while %q was expected of it; does TestMain call locktest.Main first? Its stderr:\n%s", kind, c.stderr)
		}
		if time.Now().After(end) {
			c.t.Fatalf("no %q from the child within %v", kind, limit)
		}
	}
}

func (c *child) ended() bool { return waiting.Closed(c.gone) }

func (c *child) do(cmd command) {
	c.t.Helper()
	if err := json.NewEncoder(c.in).Encode(cmd); err != nil {
		c.t.Fatalf("command to the child: %v", err)
	}
}

// kill ends the child as kill -9 does. It returns the instant before.
func (c *child) kill() (at time.Time) {
	at = time.Now()
	_ = c.cmd.Process.Kill() // it may have ended already
	<-c.gone
	return at
}

// lastDeadline returns the last deadline that the child believed in.
func (c *child) lastDeadline() (deadline time.Time) {
	for _, e := range c.all() {
		if e.Event == "granted" || e.Event == "renewed" {
			deadline = e.Deadline
		}
	}
	return deadline
}

// killedHolderFreesWithinTheTTL: after a holder was killed, the resource is free within the TTL,
// but not before the deadline that the holder believed in.
func killedHolderFreesWithinTheTTL(t testing.TB, h Harness) {
	d := open(t, h)
	ttl := renewableTTL(d)
	name := newName(t)
	c := startChild(t, h)
	c.do(command{Do: "acquire", Name: name, TTL: ttl})
	granted := c.next("granted", callLimit)
	c.next("renewed", callLimit)
	l := locker(t, d, leasehold.Options{})
	mustBeBusy(t, l, name, "a child process holds it")
	killed := c.kill()
	deadline := c.lastDeadline()
	lease := acquire(t, l, name, leasehold.Wait(h.over(ttl)+followWithin))
	now := time.Now()
	if now.Before(deadline) {
		t.Errorf("granted %v before the deadline that the killed holder believed in", deadline.Sub(now))
	}
	if took := now.Sub(killed); took > h.over(ttl)+followWithin {
		t.Errorf("granted %v after the holder was killed; its TTL was %v", took, ttl)
	}
	if token := lease.Token(); token != 0 && token <= granted.Belief.Token {
		t.Errorf("token %d after that of the killed holder, %d", token, granted.Belief.Token)
	}
	release(t, lease)
}

// stoppedHolderEndsWhenItResumes: a holder is stopped for longer than its TTL, and another process
// is granted. When the holder resumes, its context ends at once. A write that it sends before it
// notices is refused by its token.
func stoppedHolderEndsWhenItResumes(t testing.TB, h Harness) {
	d := open(t, h)
	ttl := renewableTTL(d)
	name := newName(t)
	c := startChild(t, h)
	c.do(command{Do: "acquire", Name: name, TTL: ttl})
	first := c.next("granted", callLimit).Belief
	c.next("renewed", callLimit)
	resume := PauseProcess(t, c.cmd.Process)
	stopped := time.Now()
	var history History
	var guard fence.Memory
	write := func() error { return nil }
	if err := guard.Do(fence.LeaseOf(name, first.Token, first.Owner), write); err != nil && first.Token != 0 {
		t.Errorf("the holder's write was refused: %v", err)
	}

	lease := acquire(t, locker(t, d, leasehold.Options{}), name, leasehold.Wait(h.over(ttl)+followWithin))
	done := history.Believe(lease)
	if took := time.Since(stopped); took > h.over(ttl)+followWithin {
		t.Errorf("granted %v after the holder was stopped; its TTL was %v", took, ttl)
	}
	if err := guard.Do(lease, write); err != nil && lease.Token() != 0 {
		t.Errorf("the successor's write was refused: %v", err)
	}
	resumed := time.Now()
	resume()
	ended := c.next("ended", callLimit)
	if took := ended.At.Sub(resumed); took > Margin {
		t.Errorf("the holder's context ended %v after it was resumed", took)
	}
	if ended.LateActs > 0 {
		t.Errorf("after its deadline the resumed holder found its context alive %d times", ended.LateActs)
	}
	if err := guard.Do(fence.LeaseOf(name, first.Token, first.Owner), write); !errors.Is(err, fence.ErrStale) && first.Token != 0 {
		t.Errorf("a write with the former holder's token: %v; want ErrStale", err)
	}
	first.Until = earlier(ended.At, c.lastDeadline())
	history.Add(first)
	done()
	release(t, lease)
	if err := history.Check(); err != nil {
		t.Error(err)
	}
}

func processThatReleasedFreesAtOnce(t testing.TB, h Harness) {
	name := newName(t)
	l := locker(t, open(t, h), leasehold.Options{})
	c := startChild(t, h)
	c.do(command{Do: "acquire", Name: name, TTL: longTTL})
	c.next("granted", callLimit)
	mustBeBusy(t, l, name, "a child process holds it")
	c.do(command{Do: "release"})
	c.next("released", callLimit)
	mustBeFree(t, l, name, "the child process released it")
	c.in.Close()
	eventually(t, callLimit, "the child's end", c.ended)
	if code := c.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the child exited with %d:\n%s", code, c.stderr)
	}
	mustBeFree(t, l, name, "the child process has ended")
}

// everyProcessIsServed: 100 callers in four processes are served, one at a time.
func everyProcessIsServed(t testing.TB, h Harness) {
	const processes, callers = 4, 25
	name := newName(t)
	ttl := max(longTTL, open(t, h).Features().MinTTL)
	var children []*child
	for range processes {
		children = append(children, startChild(t, h))
	}
	var history History
	for _, c := range children {
		c.do(command{Do: "loop", Name: name, TTL: ttl, Workers: callers, Rounds: 1, Hold: 5 * time.Millisecond})
	}
	for _, c := range children {
		c.next("done", 3*callLimit)
		if err := addTold(&history, c.all(), time.Now()); err != nil {
			t.Errorf("a child: %v", err)
		}
	}
	if n := history.Len(); n != processes*callers {
		t.Errorf("%d of %d were served", n, processes*callers)
	}
	if err := history.Check(); err != nil {
		t.Error(err)
	}
}

// stormOfKills: processes compete for one name. Sometimes one is killed and replaced. Holders never
// overlap, tokens grow, and callers are still served.
func stormOfKills(t testing.TB, h Harness) {
	const processes, kills = 5, 4
	name := newName(t)
	ttl := renewableTTL(open(t, h))
	loop := command{Do: "loop", Name: name, TTL: ttl, Workers: 2, Hold: 100 * time.Millisecond}
	var history History
	start := func() *child {
		c := startChild(t, h)
		c.do(loop)
		return c
	}
	var children []*child
	for range processes {
		children = append(children, start())
	}
	reap := func(c *child) {
		killed := c.kill()
		if err := addTold(&history, c.all(), killed); err != nil {
			t.Errorf("a child: %v", err)
		}
	}
	// A killed process may leave a lease and a waiter that is next. Both have to end.
	limit := 2 * (h.over(ttl) + followWithin)
	for range kills {
		time.Sleep(ttl / 4)
		holder := nextHolder(t, children, limit)
		reap(children[holder])
		children[holder] = start()
	}
	nextHolder(t, children, limit)
	for _, c := range children {
		reap(c)
	}
	if err := history.Check(); err != nil {
		t.Error(err)
	}
}

// nextHolder waits until one of the children is granted, and returns its index.
func nextHolder(t testing.TB, children []*child, limit time.Duration) (holder int) {
	t.Helper()
	begin := time.Now()
	eventually(t, limit, "a grant", func() bool {
		holder = slices.IndexFunc(children, func(c *child) bool {
			return slices.ContainsFunc(c.all(), func(e event) bool { return e.Event == "granted" && e.At.After(begin) })
		})
		return holder >= 0
	})
	return holder
}

// addTold adds the beliefs of a child that was killed. The last ones ended when it was.
func addTold(history *History, told []event, killed time.Time) error {
	var errs []error
	live := make(map[string]event)
	for _, e := range told {
		key := fmt.Sprint(e.Belief.Owner, e.Belief.Token)
		switch e.Event {
		case "granted":
			live[key] = e
		case "believed":
			delete(live, key)
			history.Add(e.Belief)
		case "failed":
			// a storm may cost a lease, but nothing else
			if !strings.Contains(e.Error, leasehold.ErrLost.Error()) {
				errs = append(errs, errors.New(e.Error))
			}
		}
	}
	for _, e := range live {
		e.Belief.Until = earlier(killed, e.Deadline)
		history.Add(e.Belief)
	}
	return errors.Join(errs...)
}
