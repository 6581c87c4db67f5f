package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/spf13/pflag"
)

// LongJob is a job that takes several lease lengths. Two servers try to run it. Halfway, the first
// one's link to the lock store is cut.
type LongJob struct {
	Steps int           `json:"steps"`
	TTL   time.Duration `json:"ttl_ns"`
}

func newLongJob() *LongJob { return &LongJob{Steps: 15, TTL: 500 * time.Millisecond} }

// About implements Scenario.
func (s *LongJob) About() About {
	return About{
		Name:  "longjob",
		Short: "A job longer than its lease, cut off from the store",
		Long: `Run a job of many steps, five of which take as long as a lease. Two servers want to run it.
The first renews its lease while it works, until its link to the store is cut. It stops when
the lease ends by its own clock. Only then does the second server get the lock and continue
after the last step. Later the link delivers what it held back. Without a lock both servers
run all steps.

# The link
A proxy before the store's servers cuts the link. A SQLite file has no link: there another
program holds the file's write lock for longer than a lease.`,
		Examples:   []string{"", "--ttl 3s --steps 30"},
		Strategies: []Strategy{None, Lock},
		Headline:   fmt.Sprintf("a job of %d steps, leases as long as %d of them", s.Steps, stepsPerTTL),
	}
}

// AddFlags implements Scenario.
func (s *LongJob) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&s.Steps, "steps", s.Steps, "`N` steps of the job")
	addTTL(flags, &s.TTL)
}

// stepsPerTTL and leastSteps make the job last longer than its lease does after the cut.
const stepsPerTTL, leastSteps = 5, 12

// Check implements Scenario.
func (s *LongJob) Check() error {
	return errors.Join(checkTTL(s.TTL), check(bound{"steps", s.Steps, leastSteps, 10_000}))
}

// A LongJobResult is what the books say about the job. Runners are numbered from 0.
type LongJobResult struct {
	Steps       int       `json:"steps_done"` // number of different steps
	Twice       int       `json:"done_twice"`
	Changes     int       `json:"changes"`      // changes from one runner to the other
	StoppedAt   int       `json:"stopped_at"`   // step at which the first runner stopped; 0: it did not
	StoppedLate bool      `json:"stopped_late"` // it stopped because of the books, not because its lease ended
	AfterCut    float64   `json:"after_cut_ms"` // time from the cut until it stopped
	Idle        float64   `json:"idle_ms"`      // time from then until the second runner began
	Tokens      [2]uint64 `json:"tokens"`
	verdict
}

func (r *LongJobResult) figures() []figure {
	return []figure{
		count("steps done", r.Steps), count("steps done twice", r.Twice), count("changes of the runner", r.Changes),
		count("first runner stopped at", r.StoppedAt), span("after the cut", r.AfterCut), span("then nobody worked for", r.Idle),
		{"first runner's token", fmt.Sprint(r.Tokens[0])}, {"second runner's token", fmt.Sprint(r.Tokens[1])},
	}
}

// Messages of the runners.
const begun, stepDone, stopped, fenced = "begun", "step", "stopped", "fenced"

func (s *LongJob) play(ctx context.Context, r *run) (Result, error) {
	if err := r.books.create(ctx, `CREATE TABLE steps (id `+serial+`, runner INTEGER NOT NULL, step INTEGER NOT NULL)`); err != nil {
		return nil, err
	}
	p := &longJobPlay{scenario: s, run: r, res: &LongJobResult{}}
	if r.strategy != None {
		var err error
		if p.link, err = newLink(r.stage.Store); err != nil {
			return nil, err
		}
		defer p.link.close()
		r.store = func(process int) string {
			if process == 0 {
				return p.link.url()
			}
			return r.stage.Store
		}
	}
	if err := r.lease(ctx, s.TTL); err != nil {
		return nil, err
	}
	if err := r.perform(ctx, 2, p.hear); err != nil {
		return nil, err
	}
	var runners []int
	err := r.books.read(ctx, func(tx *tx) (err error) {
		runners, err = tx.numbers(`SELECT runner FROM steps ORDER BY id`)
		return errors.Join(err, tx.row(`SELECT count(DISTINCT step), count(*) - count(DISTINCT step) FROM steps`).Scan(&p.res.Steps, &p.res.Twice))
	})
	for i := 1; i < len(runners); i++ {
		if runners[i] != runners[i-1] {
			p.res.Changes++
		}
	}
	p.res.verdict = s.judge(p.res, r.strategy)
	return p.res, err
}

func (s *LongJob) judge(r *LongJobResult, strategy Strategy) verdict {
	return judge(
		rule{r.Steps == s.Steps, fmt.Sprintf("%d of %d steps were done", r.Steps, s.Steps)},
		rule{r.Twice == 0, fmt.Sprintf("%d steps were done twice", r.Twice)},
		rule{r.Changes <= 1, fmt.Sprintf("both worked at the same time: %d changes of the runner", r.Changes)},
		rule{strategy == None || r.StoppedAt > 0, "the first runner did not stop"},
		rule{!r.StoppedLate, "a runner went on after the other had begun"},
	)
}

// A longJobPlay is a run in progress.
type longJobPlay struct {
	scenario *LongJob
	run      *run
	link     link // nil in a run without a lock
	res      *LongJobResult

	cut, stop time.Time
}

func (p *longJobPlay) hear(by *process, m message) error {
	first := m.Actor == 0
	switch m.What {
	case begun:
		resumed := p.res.Tokens[m.Actor] > 0
		p.res.Tokens[m.Actor] = m.Token
		if !first && !resumed && !p.stop.IsZero() {
			p.res.Idle = milliseconds(time.Since(p.stop))
		}
	case fenced:
		p.res.StoppedLate = true
	case stopped:
		if !first {
			return nil // the machine is too busy; it continues later
		}
		p.stop = time.Now()
		p.res.StoppedAt = m.Number
		p.res.AfterCut = milliseconds(p.stop.Sub(p.cut))
	case stepDone:
		p.run.progress("runner %d has done step %d of %d", m.Actor+1, m.Number, p.scenario.Steps)
		return p.act(first, m.Number)
	}
	return nil
}

// cutAfter is the step of the first runner after which its link is cut.
func (s *LongJob) cutAfter() int { return s.Steps / 3 }

// act cuts the link after a third of the job. It mends the link when the second runner works: what
// the link held back must not disturb that one.
func (p *longJobPlay) act(first bool, step int) error {
	switch {
	case p.link == nil:
	case first && step == p.scenario.cutAfter():
		p.cut = time.Now()
		err := p.link.cut(p.run.order.TTL)
		p.run.processes[0].tell("cut")
		return err
	case !first:
		return p.link.mend()
	}
	return nil
}

func (s *LongJob) work(ctx context.Context, w *worker) error {
	if w.Process > 0 || w.locks == nil {
		if err := w.ready(); err != nil {
			return err
		}
	}
	run := func() error {
		return w.under(ctx, w.Resource, func(held context.Context, t *ticket) error {
			if w.Process == 0 && t != nil { // so that the second runner cannot be the first to get the lock
				if err := w.ready(); err != nil {
					return err
				}
			}
			return s.job(held, w, t)
		})
	}
	if w.Process > 0 {
		return again(run) // it queues again, and continues
	}
	if err := run(); !errors.Is(err, errLost) {
		return err
	}
	return nil // it has reported already that it stopped
}

// job does the remaining steps, until its lease ends.
func (s *LongJob) job(held context.Context, w *worker, t *ticket) error {
	m := message{What: begun, Actor: w.Process}
	if t != nil {
		m.Token = t.token
	}
	if err := w.say(m); err != nil {
		return err
	}
	step := 0
	err := w.books.step(held, t, func(tx *tx) error {
		if t == nil {
			return nil // a runner that knows of no other begins at the first step
		}
		return tx.row(`SELECT COALESCE(MAX(step), 0) FROM steps`).Scan(&step)
	})
	for err == nil && step < s.Steps {
		step++
		if err = s.step(held, w, t, step); err == nil {
			err = w.say(message{What: stepDone, Actor: w.Process, Number: step})
		}
		if err == nil && w.Process == 0 && t != nil && step == s.cutAfter() { // however long the cut takes, enough steps are left after it
			select {
			case <-w.lines:
			case <-held.Done():
			}
		}
	}
	switch {
	case held.Err() != nil:
		return errors.Join(err, w.say(message{What: stopped, Actor: w.Process, Number: step}))
	case errors.Is(err, fence.ErrStale):
		return errors.Join(err, w.say(message{What: fenced, Actor: w.Process, Number: step}))
	}
	return err
}

func (s *LongJob) step(held context.Context, w *worker, t *ticket, step int) error {
	if err := pause(held, w.TTL/stepsPerTTL); err != nil {
		return err
	}
	return w.books.write(held, t, `INSERT INTO steps (runner, step) VALUES (?, ?)`, w.Process, step)
}
