package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/spf13/pflag"
)

// Failover kills a Redis server while a lock is held on it. It shows what each configuration loses.
type Failover struct {
	TTL time.Duration `json:"ttl_ns"`
}

func newFailover() *Failover { return &Failover{TTL: 600 * time.Millisecond} }

// The configurations. If the first of two holders is not stopped in time, only the books can tell
// them apart.
const (
	async    Strategy = "async"    // a replica that has not seen the grant
	fencing  Strategy = "fencing"  // as async, but the books refuse smaller tokens
	replicas Strategy = "replicas" // a grant counts only when a replica has it
	redlock  Strategy = "redlock"  // three independent servers
)

// About implements Scenario.
func (s *Failover) About() About {
	return About{
		Name:  "failover",
		Short: "The Redis server dies while a lock is held on it",
		Long: `Kill a Redis server while a lock is held on it, and let its replica take over. Each
configuration loses something else:
  async     the replica has not seen the grant: a second holder, and old writes after new ones
  fencing   the same, but the books refuse the first holder's smaller token
  replicas  a grant that no replica has is not given; one that a replica has survives
  redlock   one of three independent servers dies; the holder continues if both others had granted the lock

# Servers
The demo starts its own servers, with redis-server, which must be installed. With
--store redlock://… the last configuration uses those servers, and cuts the link to the
first. With --store redis+sentinel://… the other configurations ask the sentinels for a
failover. A loss is then a matter of luck: the primary lives, and the replicas are usually
up to date.`,
		Examples:   []string{"", "--strategy fencing", "--strategy redlock --store redlock://h1,h2,h3"},
		Strategies: []Strategy{async, fencing, replicas, redlock},
		Headline:   fmt.Sprintf("a server dies, leases of %v", s.TTL),
	}
}

// AddFlags implements Scenario.
func (s *Failover) AddFlags(flags *pflag.FlagSet) { addTTL(flags, &s.TTL) }

// Check implements Scenario.
func (s *Failover) Check() error { return checkTTL(s.TTL) }

// A FailoverResult combines the books with what the holders reported.
type FailoverResult struct {
	Tokens     [2]uint64 `json:"tokens"`
	NotGranted int       `json:"not_granted"` // attempts that no replica confirmed
	Both       float64   `json:"both_ms"`     // how long both held the lock
	WentOn     bool      `json:"went_on"`     // the first holder's lease continued after the server's death
	Writes     int       `json:"writes"`
	Refused    int       `json:"refused"`   // writes that the books refused
	Backwards  int       `json:"backwards"` // writes with a smaller token than the previous one
	verdict
}

func (r *FailoverResult) figures() []figure {
	return []figure{
		{"first holder's token", fmt.Sprint(r.Tokens[0])}, {"second holder's token", fmt.Sprint(r.Tokens[1])},
		count("grants not confirmed", r.NotGranted), {"first holder went on", yesNo(r.WentOn)},
		span("two held it for", r.Both), count("writes", r.Writes),
		count("writes refused", r.Refused), count("writes with an old token", r.Backwards),
	}
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// Messages of the holders.
const (
	granted    = "granted"     // Number 0: not confirmed by a replica
	refusal    = "refusal"     // the books refused a write
	leaseEnded = "lease ended" // Number 1: the holder released it, because it was told to stop
)

// A failoverPlay is a run in progress.
type failoverPlay struct {
	run   *run
	nodes *failoverNodes
	res   *FailoverResult
	ended int64 // until when the first holder believed to hold the lock
	began int64 // since when the second holder held it
}

func (s *Failover) play(ctx context.Context, r *run) (Result, error) {
	if err := r.books.create(ctx, `CREATE TABLE writes (id `+serial+`, token BIGINT NOT NULL)`); err != nil {
		return nil, err
	}
	nodes, err := r.startNodes(ctx)
	if err != nil {
		return nil, err
	}
	defer nodes.close()
	r.order.TTL = s.TTL
	r.store = func(process int) string { return nodes.urls[process] }
	p := &failoverPlay{run: r, nodes: nodes, res: &FailoverResult{}}
	err = r.perform(ctx, 2, func(by *process, m message) error { return p.hear(ctx, by, m) })
	if err != nil {
		return nil, err
	}
	res := p.res
	res.Both = milliseconds(max(0, time.Duration(p.ended-p.began)))
	err = r.books.read(ctx, func(tx *tx) error {
		tokens, err := tx.numbers(`SELECT token FROM writes ORDER BY id`)
		res.Writes = len(tokens)
		for i := 1; i < len(tokens); i++ {
			if tokens[i] < tokens[i-1] {
				res.Backwards++
			}
		}
		return err
	})
	// The sentinels may promote another replica than the one that confirmed the grant.
	excludes := r.strategy == redlock || r.strategy == replicas && !strings.HasPrefix(r.stage.Store, sentinelScheme)
	res.verdict = judge(
		rule{res.Backwards == 0, fmt.Sprintf("%d writes came after one with a greater token", res.Backwards)},
		rule{res.Tokens[0] < res.Tokens[1], "the second holder's token is not the greater one"},
		rule{!excludes || res.Both == 0, fmt.Sprintf("two held the lock for %.1f ms", res.Both)},
	)
	return res, err
}

func (p *failoverPlay) hear(ctx context.Context, by *process, m message) error {
	switch {
	case m.What == refusal:
		p.res.Refused++
	case m.What == leaseEnded:
		p.ended, p.res.WentOn = m.At, m.Number > 0
	case m.What == granted && m.Number == 0:
		p.res.NotGranted++
		return p.nodes.replicate()
	case m.What == granted && m.Actor == 0:
		p.res.Tokens[0] = m.Token
		p.run.progress("the first holder has token %d, its server dies", m.Token)
		if err := p.nodes.fail(ctx); err != nil {
			return err
		}
		p.run.processes[1].tell("the server has died")
		time.AfterFunc(beyond(p.run.order.TTL), func() { by.tell("enough") })
	case m.What == granted:
		p.res.Tokens[1], p.began = m.Token, m.At
		p.run.progress("the second holder has token %d", m.Token)
	}
	return nil
}

func (s *Failover) work(ctx context.Context, w *worker) error {
	if err := w.ready(); err != nil {
		return err
	}
	if w.Process == 0 {
		return s.first(ctx, w)
	}
	return s.second(ctx, w)
}

// first holds the lock and writes, until its lease is over or it is told to stop.
func (s *Failover) first(ctx context.Context, w *worker) error {
	lease, err := w.acquireTelling(ctx, func() error { return w.say(message{What: granted}) }, w.Resource)
	if err != nil {
		return err
	}
	defer lease.Release(ctx) // after an error the lease expires
	if err := w.say(message{What: granted, Number: 1, Token: lease.Token()}); err != nil {
		return err
	}
	held, end := lease.Context(), message{What: leaseEnded}
	for end.Number == 0 && held.Err() == nil {
		if err := s.write(held, w, lease); err != nil {
			return err
		}
		select {
		case <-w.lines:
			now := time.Now()
			if held.Err() == nil { // otherwise both happened at once
				end.Number, end.At = 1, now.UnixNano()
			}
		case <-time.After(writeEvery):
		case <-held.Done():
		}
	}
	if end.Number == 0 {
		end.At = lease.Deadline().UnixNano() // the end may have been noticed late
	}
	return w.say(end)
}

// second waits for the message that the server has died. It then acquires the lock as well.
func (s *Failover) second(ctx context.Context, w *worker) error {
	<-w.lines
	lease, err := w.acquire(ctx, w.Resource)
	if err != nil {
		return err
	}
	defer lease.Release(ctx) // after an error the lease expires
	if err := w.say(message{What: granted, Actor: 1, Number: 1, Token: lease.Token(), At: time.Now().UnixNano()}); err != nil {
		return err
	}
	for range secondWrites {
		if err := s.write(ctx, w, lease); err != nil {
			return err
		}
		if err := pause(ctx, writeEvery); err != nil {
			return err
		}
	}
	return nil
}

const writeEvery, secondWrites = 20 * time.Millisecond, 5

// write records the lease's token. With fencing the books check it.
func (s *Failover) write(ctx context.Context, w *worker, lease *leasehold.Lease) error {
	t := ticketOf(lease)
	if w.Strategy == async {
		t = nil
	}
	err := w.books.write(ctx, t, `INSERT INTO writes (token) VALUES (?)`, int64(lease.Token()))
	switch {
	case errors.Is(err, fence.ErrStale):
		return w.say(message{What: refusal})
	case ctx.Err() != nil:
		return nil // the lease has ended, which the caller notices itself
	}
	return err
}
