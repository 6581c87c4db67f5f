package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/spf13/pflag"
)

// Coupon is a limited series of coupons, one per user. Users click on several servers at once. One
// server is stopped between its read and its write, for longer than its lease. The claim that it
// was serving is rolled back.
type Coupon struct {
	Users     int           `json:"users"`
	Series    int           `json:"series"`
	Processes int           `json:"processes"`
	Tries     int           `json:"tries"`
	TTL       time.Duration `json:"ttl_ns"`
}

func newCoupon() *Coupon {
	return &Coupon{Users: 10, Series: 4, Processes: 3, Tries: 5, TTL: 500 * time.Millisecond}
}

// About implements Scenario.
func (s *Coupon) About() About {
	return About{
		Name:  "coupon",
		Short: "One coupon a user, of a limited series",
		Long: `Give away a limited series of coupons, one per user. Users click on all servers at once, and
try again a few times if the lock stays busy. The first server is stopped between its read
and its write, for longer than its lease. Without a lock users get several coupons, and more
are given away than there are. Under the lock the first server finds its lease lost when it
continues, and rolls back the claim.`,
		Examples:   []string{"", "--users 40 --series 10 --processes 5 --tries 3"},
		Strategies: []Strategy{None, Lock},
		Headline:   fmt.Sprintf("%d users click on %d servers, %d coupons", s.Users, s.Processes, s.Series),
	}
}

// AddFlags implements Scenario.
func (s *Coupon) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&s.Users, "users", s.Users, "`N` users")
	flags.IntVar(&s.Series, "series", s.Series, "`N` coupons to give away")
	flags.IntVar(&s.Processes, "processes", s.Processes, "`N` servers, of which the first is stopped")
	flags.IntVar(&s.Tries, "tries", s.Tries, "`N` tries of a user on each server while the lock is busy")
	addTTL(flags, &s.TTL)
}

// Check implements Scenario.
func (s *Coupon) Check() error {
	return errors.Join(checkTTL(s.TTL), check(bound{"users", s.Users, 1, 1000}, bound{"coupons", s.Series, 1, maxStock},
		bound{"processes", s.Processes, 2, maxProcesses}, bound{"tries", s.Tries, 1, 1000}))
}

// A CouponResult is what the books say about the coupons.
type CouponResult struct {
	Given      int `json:"given"`
	Left       int `json:"left"`        // according to the books
	Several    int `json:"several"`     // users with several coupons
	Refused    int `json:"refused"`     // claims for which the user had one, or none was left
	GaveUp     int `json:"gave_up"`     // claims that found the lock busy in each attempt
	RolledBack int `json:"rolled_back"` // claims whose lease was lost before the write
	waits
	verdict
}

func (r *CouponResult) figures() []figure {
	return append([]figure{
		count("coupons given", r.Given), count("left, say the books", r.Left), count("users with several", r.Several),
		count("claims refused", r.Refused), count("claims given up", r.GaveUp), count("claims rolled back", r.RolledBack),
	}, r.waits.figures()...)
}

// rolledBack is also a message of a process.
const rolledBack = "rolled back"

func (s *Coupon) play(ctx context.Context, r *run) (Result, error) {
	if err := s.open(ctx, r.books); err != nil {
		return nil, err
	}
	if err := r.lease(ctx, s.TTL); err != nil {
		return nil, err
	}
	a, res := newAudience(0), &CouponResult{}
	overtaken, enough := false, make(chan struct{})
	resume := sync.OnceFunc(func() { close(enough) })
	defer resume()
	err := r.perform(ctx, s.Processes, func(by *process, m message) error {
		switch m.What {
		case ready:
			return r.processes[0].stopFor(beyond(r.order.TTL), enough, goOn)
		case rolledBack:
			res.RolledBack++
		case done:
			a.hear(r, m)
			r.progress("%d claims answered", len(a.all))
			// A store may keep a lease for longer than its holder relies on it. The stopped
			// server's write is right until another server has had the lock.
			overtaken = overtaken || by != r.processes[0] && m.Number != gaveUp
			if overtaken || len(a.all) == s.Users*(s.Processes-1) {
				resume()
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	res.Refused, res.GaveUp, res.waits = a.numbers[soldOut], a.numbers[gaveUp], a.waits()
	err = r.books.read(ctx, func(tx *tx) error {
		return errors.Join(
			tx.row(`SELECT count(*) FROM coupons`).Scan(&res.Given),
			tx.row(`SELECT coupons FROM series`).Scan(&res.Left),
			tx.row(`SELECT count(*) FROM (SELECT usr FROM coupons GROUP BY usr HAVING count(*) > 1) AS several`).Scan(&res.Several),
		)
	})
	res.verdict = judge(
		rule{res.Given <= s.Series, fmt.Sprintf("gave away %d of %d coupons", res.Given, s.Series)},
		rule{res.Several == 0, fmt.Sprintf("%d users have several coupons", res.Several)},
		rule{res.Given+res.Left == s.Series, fmt.Sprintf("%d given and %d left of %d", res.Given, res.Left, s.Series)},
		rule{res.Given == a.numbers[sold], fmt.Sprintf("%d claims were granted, the books have %d", a.numbers[sold], res.Given)},
		rule{r.strategy == None || res.RolledBack > 0 || !overtaken, "the stopped server wrote what it had read before"},
	)
	return res, err
}

// open creates the tables of b.
func (s *Coupon) open(ctx context.Context, b *books) error {
	return b.create(ctx,
		`CREATE TABLE series (id INTEGER PRIMARY KEY, coupons INTEGER NOT NULL)`,
		`CREATE TABLE coupons (usr INTEGER NOT NULL)`,
		fmt.Sprintf(`INSERT INTO series VALUES (1, %d)`, s.Series))
}

func (s *Coupon) work(ctx context.Context, w *worker) error {
	if w.Process == 0 {
		return s.workStopped(ctx, w)
	}
	var users []int
	for user := range s.Users {
		users = append(users, user)
	}
	return w.crowd(users, func(user int) (message, error) {
		outcome, err := s.claim(ctx, w, user)
		return message{What: done, Number: outcome}, err
	})
}

// workStopped runs the server that is stopped while it serves a claim.
func (s *Coupon) workStopped(ctx context.Context, w *worker) error {
	err := again(func() error { return s.serveStopped(ctx, w) })
	outcome := sold
	if errors.Is(err, errOvertaken) {
		if err := w.say(message{What: rolledBack}); err != nil {
			return err
		}
		outcome, err = s.claim(ctx, w, 0)
	}
	if err != nil {
		return err
	}
	return w.say(message{What: done, Number: outcome, Wait: time.Since(w.opened)})
}

// errOvertaken means that the lease was lost while the server was stopped.
var errOvertaken = errors.New("the lease was lost while the server was stopped")

// serveStopped serves the claim during which the server is stopped. errLost means that it was not
// stopped yet. The lease is not renewed: a process that is stopped during a renewal would keep
// others from a store in a file.
func (s *Coupon) serveStopped(ctx context.Context, w *worker) error {
	stopped := false
	err := w.under(ctx, w.Resource, func(ctx context.Context, t *ticket) error {
		left, err := s.look(ctx, w, 0, t)
		if err != nil {
			return err
		}
		if err := w.ready(); err != nil {
			return err
		}
		stopped = true
		<-w.lines // goOn: the server was stopped before it arrived
		return s.give(ctx, w, 0, left, t)
	}, leasehold.NoRenew())
	if stopped && errors.Is(err, errLost) {
		return errOvertaken
	}
	return err
}

// claim is one user's click on one server, including retries.
func (s *Coupon) claim(ctx context.Context, w *worker, user int) (outcome int, err error) {
	for range s.Tries {
		outcome = soldOut
		err = again(func() error {
			return w.under(ctx, w.Resource, func(ctx context.Context, t *ticket) error {
				left, err := s.look(ctx, w, user, t)
				if err != nil || left == 0 {
					return err
				}
				if err := think(ctx); err != nil {
					return err
				}
				outcome = sold
				return s.give(ctx, w, user, left, t)
			}, leasehold.Wait(w.TTL))
		})
		if !errors.Is(err, leasehold.ErrBusy) {
			return outcome, err
		}
	}
	return gaveUp, nil
}

// look returns how many coupons are left for user. It is 0 if the user has one already.
func (s *Coupon) look(ctx context.Context, w *worker, user int, t *ticket) (left int, err error) {
	err = w.books.step(ctx, t, func(tx *tx) error {
		var has int
		if err := tx.row(`SELECT count(*) FROM coupons WHERE usr = ?`, user).Scan(&has); err != nil || has > 0 {
			return err
		}
		return tx.row(`SELECT coupons FROM series WHERE id = 1`).Scan(&left)
	})
	return max(left, 0), err
}

// give records a coupon for user, and that one less than left is left.
func (s *Coupon) give(ctx context.Context, w *worker, user, left int, t *ticket) error {
	return w.books.step(ctx, t, func(tx *tx) error {
		_, taken := tx.write(`UPDATE series SET coupons = ? WHERE id = 1`, left-1)
		_, given := tx.write(`INSERT INTO coupons VALUES (?)`, user)
		return errors.Join(taken, given)
	})
}
