package demo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// A Stage is what scenarios are played on.
type Stage struct {
	Dir      string          // for temporary files; it exists and is the caller's to remove
	Shop     string          // URL of the database for the books; "": a file in Dir
	Store    string          // resolved URL of the lock store
	Features driver.Features // of the lock store
	// Worker returns the command of a process that calls Work on its standard streams.
	Worker func(ctx context.Context) *exec.Cmd
	// Progress is called with what has happened so far; nil: it is not.
	Progress func(text string)
}

// Play plays a scenario with each of the strategies in turn. All its processes have ended
// and its books are gone when it returns, also after an error or the end of ctx.
func (st *Stage) Play(ctx context.Context, s Scenario, strategies []Strategy) (*Report, error) {
	rep := &Report{Scenario: s.About().Name, Settings: s, Runs: make(map[Strategy]Result), order: strategies}
	for _, strategy := range strategies {
		res, err := st.playOne(ctx, s, strategy)
		if err != nil {
			return nil, err
		}
		rep.Runs[strategy] = res
	}
	return rep, nil
}

func (st *Stage) playOne(ctx context.Context, s Scenario, strategy Strategy) (res Result, err error) {
	if strategy == Lock && !st.Features.Fencing {
		return nil, fmt.Errorf("%w: the store gives no fencing tokens, which the books want to see", ErrSettings)
	}
	settings, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	b, err := createBooks(ctx, st.Shop, st.Dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		// Also when ctx has ended, because nothing is to stay behind.
		if dropped := b.drop(context.WithoutCancel(ctx)); err == nil {
			err = dropped
		}
	}()
	r := &run{stage: st, books: b, strategy: strategy, order: order{
		Scenario: s.About().Name, Settings: settings, Strategy: strategy, Books: b.place,
		// A resource of its own: the store may be a shared one.
		Resource: "demo/" + s.About().Name + "/" + rand.Text(),
	}}
	if strategy != None && strategy != Optimistic {
		r.order.Store = st.Store
	}
	res, err = s.play(ctx, r)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return res, err
}

// A run is a scenario played once.
type run struct {
	stage    *Stage
	books    *books
	strategy Strategy
	order    order
	// store, if not nil, is the lock store's URL for one process.
	store     func(process int) string
	processes []*process // by number
	opened    time.Time  // when they were let in
}

// lease sets the length of the leases: what the store gives to who asks for want. It may
// have a least one of its own, and not tell before it is asked.
func (r *run) lease(ctx context.Context, want time.Duration) error {
	r.order.TTL = want
	if r.order.Store == "" {
		return nil
	}
	f := r.stage.Features
	want = max(want, f.MinTTL)
	if f.Step > 0 {
		want = (want + f.Step - 1) / f.Step * f.Step
	}
	granted, err := r.tryLease(ctx, want)
	for errors.Is(err, leasehold.ErrUnsupported) && 2*want <= mostTTL {
		want *= 2
		granted, err = r.tryLease(ctx, want)
	}
	r.order.TTL = granted
	return err
}

// tryLease returns how long a lease of want is.
func (r *run) tryLease(ctx context.Context, want time.Duration) (granted time.Duration, err error) {
	w, err := newLocks(ctx, order{Store: r.order.Store, TTL: want})
	if err != nil {
		return 0, err
	}
	defer w.close()
	start := time.Now()
	lease, err := w.acquire(ctx, r.order.Resource+"/ttl")
	if err != nil {
		return 0, err
	}
	granted = lease.Deadline().Sub(start)
	if granted > want {
		granted += granted / 50 // the deadline is earlier than the end by the drift
	}
	_ = lease.Release(ctx) // where it fails the lease ends by itself, and nobody wants it
	return max(want, granted), nil
}

// progress tells what has happened so far.
func (r *run) progress(format string, args ...any) {
	if r.stage.Progress != nil {
		r.stage.Progress(r.strategy.title() + ": " + fmt.Sprintf(format, args...))
	}
}

// An order is the first line that a process reads from its input. The next one starts
// it; the end of the input ends it.
type order struct {
	Scenario string          `json:"scenario"`
	Settings json.RawMessage `json:"settings"`
	Strategy Strategy        `json:"strategy"`
	Books    place           `json:"books"`
	Store    string          `json:"store"` // URL; "" is without a lock
	Resource string          `json:"resource"`
	TTL      time.Duration   `json:"ttl"` // 0: the library's default
	Process  int             `json:"process"`
}

// A message is a line that a process writes. Instants are of the machine's clock.
type message struct {
	What   string        `json:"what"` // "ready" opens the doors when all have said it
	Actor  int           `json:"actor,omitempty"`
	Number int           `json:"number,omitempty"`
	Wait   time.Duration `json:"wait,omitempty"` // since the doors were opened
	Token  uint64        `json:"token,omitempty"`
	At     int64         `json:"at,omitempty"` // instant, in nanoseconds since 1970
}

// Messages of processes.
const ready, done = "ready", "done"
