package locktest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// childEnv is the environment variable that makes a test binary a child process of the suite. Its
// value is the address.
const childEnv = "LEASEHOLD_LOCKTEST_CHILD"

// Main is for the TestMain of a Harness with an Address. Call it before anything else is set up.
//
// In a child process of the suite it opens the engine, runs the suite's commands, and exits
// without running tests. Otherwise it runs the tests and returns, as m.Run does.
func Main(m *testing.M, open func(address string) (driver.Driver, error)) {
	address, isChild := os.LookupEnv(childEnv)
	if !isChild {
		m.Run() // TestMain exits with the code of Run
		return
	}
	if err := serve(address, open, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "locktest: child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A command is one line of a child's input.
type command struct {
	Do      string        `json:"do"` // acquire, release or loop
	Name    string        `json:"name"`
	TTL     time.Duration `json:"ttl"`
	Workers int           `json:"workers"` // of loop: goroutines
	Rounds  int           `json:"rounds"`  // of loop: leases per worker; 0: until the child dies
	Limit   int           `json:"limit"`   // of loop: shared with a limit; 0: exclusive
	Hold    time.Duration `json:"hold"`    // of loop: the longest hold
}

// An event is one line of a child's output. Instants are by the machine's wall clock.
type event struct {
	Event    string    `json:"event"` // ready, granted, renewed, ended, believed, released, done or failed
	Belief   Belief    `json:"belief"`
	Deadline time.Time `json:"deadline"`
	At       time.Time `json:"at"`
	LateActs int       `json:"late_acts"` // of ended: how often it acted after its deadline
	Error    string    `json:"error"`
}

// childState is the state of a child process.
type childState struct {
	locker *leasehold.Locker

	mu    sync.Mutex
	out   *json.Encoder    // guarded by mu
	lease *leasehold.Lease // guarded by mu; of acquire
}

// serve executes the commands of in until it ends, and then closes everything.
func serve(address string, open func(string) (driver.Driver, error), in io.Reader, out io.Writer) (err error) {
	d, err := open(address)
	if err != nil {
		return err
	}
	c := &childState{out: json.NewEncoder(out)}
	c.locker, err = leasehold.New(d, &leasehold.Options{
		TTL:   max(leasehold.DefaultTTL, d.Features().MinTTL),
		Trace: On(leasehold.StepRenewed, func(leasehold.Event) { c.renewed() }),
	})
	if err != nil {
		return err
	}
	c.tell(event{Event: "ready"})
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var cmd command
		if err := json.Unmarshal(lines.Bytes(), &cmd); err != nil {
			return err
		}
		if err := c.do(cmd); err != nil {
			c.tell(event{Event: "failed", Error: err.Error()})
		}
	}
	if err := c.locker.Close(); err != nil {
		return err
	}
	return d.Close()
}

func (c *childState) tell(e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.At = time.Now()
	_ = c.out.Encode(e) // if the parent has died, nobody reads this
}

func (c *childState) do(cmd command) error {
	switch cmd.Do {
	case "acquire":
		return c.acquire(cmd)
	case "release":
		return c.release()
	case "loop":
		go c.loop(cmd)
		return nil
	}
	return fmt.Errorf("no such command: %q", cmd.Do)
}

// acquire holds a lease and acts under it until it ends.
func (c *childState) acquire(cmd command) error {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	lease, err := c.locker.Acquire(ctx, cmd.Name, leasehold.TTL(cmd.TTL))
	if err != nil {
		return err
	}
	from := time.Now()
	c.mu.Lock()
	c.lease = lease
	c.mu.Unlock()
	c.tell(event{Event: "granted", Belief: beliefIn(lease, cmd.Limit, from), Deadline: lease.Deadline()})
	go c.act(lease)
	return nil
}

// act behaves like a careful holder: it checks the context, then acts.
func (c *childState) act(lease *leasehold.Lease) {
	late := 0
	for {
		asked := time.Now() // if we pause after this line, the deadline counts as not passed yet
		if lease.Context().Err() != nil {
			break
		}
		if asked.After(lease.Deadline()) {
			late++
		}
		time.Sleep(pollEvery)
	}
	c.tell(event{Event: "ended", LateActs: late, Error: context.Cause(lease.Context()).Error()})
}

func (c *childState) renewed() {
	c.mu.Lock()
	lease := c.lease
	c.mu.Unlock()
	if lease != nil {
		c.tell(event{Event: "renewed", Deadline: lease.Deadline()})
	}
}

func (c *childState) release() error {
	c.mu.Lock()
	lease := c.lease
	c.mu.Unlock()
	if err := lease.Release(context.Background()); err != nil {
		return err
	}
	c.tell(event{Event: "released"})
	return nil
}

// loop acquires and releases again and again. It reports each belief at its beginning and its end.
func (c *childState) loop(cmd command) {
	var workers sync.WaitGroup
	for range cmd.Workers {
		workers.Go(func() {
			for i := 0; cmd.Rounds == 0 || i < cmd.Rounds; i++ {
				if err := c.turn(cmd); err != nil {
					c.tell(event{Event: "failed", Error: err.Error()})
				}
			}
		})
	}
	workers.Wait()
	c.tell(event{Event: "done"})
}

func (c *childState) turn(cmd command) error {
	opts := []leasehold.Option{leasehold.TTL(cmd.TTL)}
	if cmd.Limit > 0 {
		opts = append(opts, leasehold.Limit(cmd.Limit))
	}
	lease, err := c.locker.Acquire(context.Background(), cmd.Name, opts...)
	if err != nil {
		return err
	}
	b := beliefIn(lease, cmd.Limit, time.Now())
	c.tell(event{Event: "granted", Belief: b, Deadline: lease.Deadline()})
	time.Sleep(rand.N(cmd.Hold))
	b.Until = earlier(time.Now(), lease.Deadline())
	if lease.Context().Err() != nil {
		b.Until = b.From // the end is unknown, so claim nothing
	}
	c.tell(event{Event: "believed", Belief: b}) // before the Release: a child that is killed after it believes nothing
	return lease.Release(context.Background())
}

func beliefIn(lease *leasehold.Lease, limit int, from time.Time) Belief {
	b := Belief{Resource: lease.Name(), Owner: lease.Owner(), Token: lease.Token(), Limit: limit, From: from}
	if limit > 0 {
		b.Mode = driver.Shared
	}
	return b
}
