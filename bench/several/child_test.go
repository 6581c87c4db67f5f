package several_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
)

// childEnv makes this test binary the other process; its value is the engine's name.
const childEnv = "LEASEHOLD_BENCH_SEVERAL"

// A message goes both ways: what to do with which name, or what has happened and when.
// Instants are of this machine's wall clock.
type message struct {
	What, Name string
	At         time.Time
}

// A child is another process that holds and leads.
type child struct {
	b   *testing.B
	cmd *exec.Cmd
	in  *json.Encoder
	out *json.Decoder
}

// startChild starts the other process, which ends with b or by kill. The address reaches
// it through the pipe.
func startChild(b *testing.B, e engine, addr string) *child {
	b.Helper()
	cmd, in, out := contest.Again(b, childEnv+"="+e.name)
	c := &child{b, cmd, json.NewEncoder(in), json.NewDecoder(out)}
	b.Cleanup(c.kill)
	c.tell("open", addr)
	c.hear("ready")
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may be dead
	_ = c.cmd.Wait()
}

func (c *child) tell(what, name string) {
	c.b.Helper()
	if err := c.in.Encode(message{What: what, Name: name}); err != nil {
		c.b.Fatal(err)
	}
}

// hear waits until what has happened and returns when.
func (c *child) hear(what string) time.Time {
	c.b.Helper()
	for {
		var m message
		if err := c.out.Decode(&m); err != nil {
			c.b.Fatalf("waiting for %q of the other process: %v", what, err)
		}
		if m.What == what {
			return m.At
		}
	}
}

// play is the other process.
func play(name string) error {
	e, err := find(name)
	if err != nil {
		return err
	}
	lines := json.NewDecoder(os.Stdin)
	out := make(chan message, 1000)
	go func() {
		to := json.NewEncoder(os.Stdout)
		for m := range out {
			_ = to.Encode(m) // nobody is left to hear of an error
		}
	}()
	say := func(what string) { out <- message{What: what, At: time.Now()} }

	var m message
	if err := lines.Decode(&m); err != nil {
		return err
	}
	d, err := e.open(m.Name)
	if err != nil {
		return err
	}
	locks, err := leasehold.New(d, &leasehold.Options{TTL: ttl, Trace: func(_ context.Context, e leasehold.Event) {
		if e.Step == leasehold.StepRenewed {
			say("renewed")
		}
	}})
	if err != nil {
		return err
	}
	say("ready")
	end := func() {}
	for {
		err := lines.Decode(&m)
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case m.What == "end":
			end()
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		has := func(held context.Context) error {
			say("has")
			<-held.Done()
			say("gone")
			return nil
		}
		if end = cancel; m.What == "lead" {
			go func() { _ = locks.Lead(ctx, m.Name, has) }()
		} else {
			go func() { _ = locks.Do(ctx, m.Name, has) }()
		}
	}
}
