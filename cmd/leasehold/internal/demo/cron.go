package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/spf13/pflag"
)

// Cron is a daily job in the crontabs of several servers, whose clocks differ. On the second day,
// the server that runs it dies halfway.
type Cron struct {
	Servers int           `json:"servers"`
	Day     time.Duration `json:"day_ns"`
}

func newCron() *Cron { return &Cron{Servers: 4, Day: 2 * time.Second} }

// About implements Scenario.
func (s *Cron) About() About {
	return About{
		Name:  "cron",
		Short: "The same daily job on several servers",
		Long: `Send a daily report from the same crontab on several servers. Each server asks at midnight,
in the morning and at noon, by a clock of its own. Without a lock each sends a report
whenever it asks. With a lease that lasts nine tenths of a day (OncePer), one report is sent
on the first day. On the second day the server that has begun is killed. Its lease ends
shortly before noon, and another server sends the report.

# Limits
If the store cannot keep a lease longer than its owner, the owner holds it all the time, and
nobody stands in on the second day. If the store stalls for longer than the lease, it may not
learn that a report was sent, and another server may send it again.`,
		Examples:   []string{"", "--servers 10 --day 10s"},
		Strategies: []Strategy{None, Lock},
		Headline:   fmt.Sprintf("%d servers, 2 days of %v", s.Servers, s.Day),
	}
}

// AddFlags implements Scenario.
func (s *Cron) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&s.Servers, "servers", s.Servers, "`N` servers with the job")
	flags.DurationVar(&s.Day, "day", s.Day, "`LENGTH` of a day, at least five times the store's shortest lease")
}

// Check implements Scenario.
func (s *Cron) Check() error {
	if s.Day < leastDay || s.Day > mostTTL {
		return fmt.Errorf("%w: a day of %v, want %v to %v", ErrSettings, s.Day, leastDay, mostTTL)
	}
	return check(bound{"servers", s.Servers, 2, maxProcesses})
}

// leastDay leaves enough time for a job.
const leastDay = 500 * time.Millisecond

// askShare is the share of a day between two attempts. skewShare is the one by which clocks differ.
const askShare, skewShare = 4, 50

// atMost limits how long a job may run, in case its server is killed or stopped.
func atMost(day time.Duration) time.Duration { return day * 9 / 20 }

// days is how long the crontabs run. asks is how often each of them starts the job per day. None
// starts it in the evening, because the day could be over before a late server has asked. On the
// last day servers continue, up to lastAsks, until the report has come: on a busy machine each of
// them may be late.
const days, asks, lastAsks = 2, 3, 24

// grantEighths is how long after its time an attempt may be granted, in eighths of a day. If the
// store stalls, a later grant could come after the period of a report of the same day. At noon the
// limit is within nine tenths of the day. Later attempts first look into the books, and the period
// of a report ends nine twentieths of a day after it was written, or later.
const grantEighths = 3

// A CronResult is what the readers of the reports see.
type CronResult struct {
	Reports [days]int `json:"reports"` // number of reports on each day
	Begun   int       `json:"begun"`
	Killed  int       `json:"killed"`
	Refused int       `json:"refused"`   // attempts that were refused because the job runs, or ran
	Stands  bool      `json:"stands_in"` // the store lets another server run what a killed one began
	// Unmarked counts reports after which the store did not confirm that the lease stays until the
	// end of the day. Each of them may come once more.
	Unmarked [days]int `json:"unmarked"`
	verdict
}

func (r *CronResult) figures() []figure {
	return []figure{
		count("reports on day 1", r.Reports[0]), count("reports on day 2", r.Reports[1]), count("jobs begun", r.Begun),
		count("servers killed", r.Killed), count("jobs refused", r.Refused), {"another stands in", yesNo(r.Stands)},
	}
}

// Messages of a server: it was refused; its store has no AtLeast; its store did not confirm that
// the lease stays.
const refused, noAtLeast, unmarked = "refused", "no at least", "unmarked"

func (s *Cron) play(ctx context.Context, r *run) (Result, error) {
	if err := r.books.create(ctx, `CREATE TABLE reports (dy INTEGER NOT NULL)`); err != nil {
		return nil, err
	}
	if err := r.lease(ctx, atMost(s.Day)); err != nil {
		return nil, err
	}
	res := &CronResult{Stands: true}
	err := r.perform(ctx, s.Servers, func(p *process, m message) error {
		switch m.What {
		case refused:
			res.Refused++
		case noAtLeast:
			res.Stands = false
		case unmarked:
			res.Unmarked[m.Number]++
		case begun:
			res.Begun++
			r.progress("day %d: a report is begun", m.Number+1)
			if m.Number > 0 && res.Killed == 0 {
				res.Killed++
				return p.kill()
			}
			p.tell(goOn)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = r.books.read(ctx, func(tx *tx) error {
		for day := range days {
			if err := tx.row(`SELECT count(*) FROM reports WHERE dy = ?`, day).Scan(&res.Reports[day]); err != nil {
				return err
			}
		}
		return nil
	})
	want := [days]int{1, 1}
	if !res.Stands {
		want[1] = 0
	}
	res.verdict = judge(
		rule{res.sent(0, want[0]), fmt.Sprintf("%d reports on the first day, want %d", res.Reports[0], want[0])},
		rule{res.sent(1, want[1]), fmt.Sprintf("%d reports on the second day, want %d", res.Reports[1], want[1])},
		rule{res.Killed == 1, "no server was killed"},
	)
	return res, err
}

// sent reports whether the number of reports on a day is right: want, or one more for each report
// that the store may not know of.
func (r *CronResult) sent(day, want int) bool {
	return r.Reports[day] >= want && r.Reports[day] <= want+r.Unmarked[day]
}

func (s *Cron) work(ctx context.Context, w *worker) error {
	if err := w.ready(); err != nil {
		return err
	}
	c := &crontab{worker: w, day: max(s.Day, w.TTL*20/9+1)}
	// The first server's clock is the fastest.
	c.midnight = w.opened.Add(c.day / skewShare * time.Duration(w.Process) / time.Duration(s.Servers))
	for day := range days {
		for n := 0; !c.over(day, n); n++ {
			if err := c.ask(ctx, day, n); err != nil {
				return err
			}
		}
	}
	if !c.answers {
		return c.missed
	}
	return nil
}

// A crontab is the crontab of one server.
type crontab struct {
	*worker
	day      time.Duration
	midnight time.Time // the one before the first day
	until    time.Time // when the present attempt is given up if it was not granted
	keeps    bool      // the store has no AtLeast
	answers  bool      // the store has answered an attempt
	missed   error     // of the last attempt without an answer
	sent     bool      // the last day's report was sent
}

// over reports whether the nth attempt of a day, from 0, comes too late.
func (c *crontab) over(day, n int) bool {
	return n >= asks && (day < days-1 || c.keeps || c.sent || n == lastAsks)
}

// ask waits for the nth time of a day and starts the job.
func (c *crontab) ask(ctx context.Context, day, n int) error {
	at := c.midnight.Add(time.Duration(day)*c.day + time.Duration(n)*c.day/askShare)
	if err := pause(ctx, time.Until(at)); err != nil {
		return err
	}
	if c.until = at.Add(c.day * grantEighths / 8); !time.Now().Before(c.until) {
		return nil // cron does not make up for missed times
	}
	if n >= asks {
		sent, err := c.books.number(ctx, nil, `SELECT count(*) FROM reports WHERE dy = ?`, day)
		if c.sent = sent > 0; c.sent || err != nil {
			return err
		}
	}
	report := func(ctx context.Context, t *ticket) error { return c.report(ctx, day, t) }
	err := c.once(ctx, day, report)
	if errors.Is(err, leasehold.ErrUnsupported) {
		err = c.keep(ctx, report)
	}
	if errors.Is(err, errMissed) {
		c.missed = err
		return nil // the next attempt begins it again
	}
	c.answers = true
	switch {
	case errors.Is(err, leasehold.ErrBusy):
		return c.say(message{What: refused})
	case errors.Is(err, errLost):
		return nil // the job took too long; the next attempt begins it again
	}
	return err
}

// errMissed means that the store has not granted the lease in time.
var errMissed = errors.New("the store took too long")

// acquire asks for the lease of an attempt.
func (c *crontab) acquire(ctx context.Context, opts ...leasehold.Option) (*leasehold.Lease, error) {
	bound, cancel := context.WithDeadline(ctx, c.until)
	defer cancel()
	lease, err := c.worker.acquire(bound, c.Resource, opts...)
	switch {
	case err != nil && bound.Err() != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("%w: %w", errMissed, err)
	case err == nil && !time.Now().Before(c.until): // this process was stopped; a release would keep the others out
		return nil, errMissed
	}
	return lease, err
}

// once runs report once a day. It reports if the store may not know that it ran.
func (c *crontab) once(ctx context.Context, day int, report func(ctx context.Context, t *ticket) error) error {
	if c.locks == nil {
		return report(ctx, nil)
	}
	lease, err := c.acquire(ctx, leasehold.OncePer(c.day), leasehold.TTL(c.TTL))
	if err != nil {
		return err
	}
	err, released := c.holdingUntil(ctx, lease, report)
	if err == nil && released != nil {
		return c.say(message{What: unmarked, Number: day})
	}
	return err
}

// keep is for a store without AtLeast: it does not release the lease.
func (c *crontab) keep(ctx context.Context, report func(ctx context.Context, t *ticket) error) error {
	c.keeps = true
	if err := c.say(message{What: noAtLeast}); err != nil {
		return err
	}
	lease, err := c.acquire(ctx, leasehold.Wait(0), leasehold.TTL(c.day-c.day/10), leasehold.NoRenew())
	if err != nil {
		return err
	}
	return report(lease.Context(), ticketOf(lease))
}

// report is the job. It waits in the middle, where its server may be killed.
func (c *crontab) report(ctx context.Context, day int, t *ticket) error {
	if err := c.say(message{What: begun, Number: day}); err != nil {
		return err
	}
	<-c.lines
	return c.books.write(ctx, t, `INSERT INTO reports VALUES (?)`, day)
}
