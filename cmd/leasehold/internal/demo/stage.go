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

// A Stage is the environment in which scenarios are played.
type Stage struct {
	Dir      string          // folder for temporary files, which the caller creates and removes
	Shop     string          // resolved URL of the database for the books; "": a file in Dir
	Store    string          // resolved URL of the lock store
	Features driver.Features // of the lock store
	// Worker returns the command of a process that calls Work on its standard streams.
	Worker func(ctx context.Context) *exec.Cmd
	// Progress is called with a text about the progress; nil: it is not.
	Progress func(text string)
}

// Play plays a scenario with each of the strategies in turn. When it returns, even after an error
// or the end of ctx, all processes have ended and the books are removed.
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
		// Even if ctx has ended, because nothing may be left.
		if dropped := b.drop(context.WithoutCancel(ctx)); err == nil {
			err = dropped
		}
	}()
	r := &run{stage: st, books: b, strategy: strategy, order: order{
		Scenario: s.About().Name, Settings: settings, Strategy: strategy, Books: b.place,
		// The store may be used by others, so the resource has a name of its own.
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

// A run is one run of a scenario, with one strategy.
type run struct {
	stage    *Stage
	books    *books
	strategy Strategy
	order    order
	// store, if not nil, is the lock store's URL for one process.
	store     func(process int) string
	processes []*process // by number
	opened    time.Time  // when the processes were told to begin
}

// lease sets the TTL of the run to what the store grants if it is asked for want. A store may have
// a minimum, and may reveal it only in a grant.
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

// tryLease returns the length of a lease that was requested with want.
func (r *run) tryLease(ctx context.Context, want time.Duration) (granted time.Duration, err error) {
	w, err := newWorker(ctx, order{Store: r.order.Store, TTL: want})
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
		granted += granted / 50 // the deadline is earlier than the end of the lease, because of the drift
	}
	_ = lease.Release(ctx) // after an error the lease expires, and nobody waits for it
	return max(want, granted), nil
}

// progress reports the progress.
func (r *run) progress(format string, args ...any) {
	if r.stage.Progress != nil {
		r.stage.Progress(r.strategy.title() + ": " + fmt.Sprintf(format, args...))
	}
}

// An order is the first line of a process's input. The next line lets the process begin, and the
// end of the input ends it.
type order struct {
	Scenario string          `json:"scenario"`
	Settings json.RawMessage `json:"settings"`
	Strategy Strategy        `json:"strategy"`
	Books    place           `json:"books"`
	Store    string          `json:"store"` // URL; "": without a lock
	Resource string          `json:"resource"`
	TTL      time.Duration   `json:"ttl"` // 0: the default of the library
	Process  int             `json:"process"`
}

// A message is a line of a process's output. Instants are by the machine's clock.
type message struct {
	What   string        `json:"what"` // when all have sent "ready", the processes may begin
	Actor  int           `json:"actor,omitempty"`
	Number int           `json:"number,omitempty"`
	Wait   time.Duration `json:"wait,omitempty"` // time since the beginning
	Token  uint64        `json:"token,omitempty"`
	At     int64         `json:"at,omitempty"` // instant, in nanoseconds since 1970
}

// Messages of all processes.
const ready, done = "ready", "done"
