package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold"
	"github.com/spf13/pflag"
)

// Seckill is a flash sale with many buyers and few pieces. The shop reads its stock and writes it
// back in two steps. Without a lock it sells pieces that it does not have.
type Seckill struct {
	Buyers    int  `json:"buyers"`
	Stock     int  `json:"stock"`
	Processes int  `json:"processes"`
	NoWait    bool `json:"no_wait"`
	Retries   int  `json:"retries"` // -1: no limit, see most
}

func newSeckill() *Seckill { return &Seckill{Buyers: 30, Stock: 5, Processes: 3, Retries: -1} }

// About implements Scenario.
func (s *Seckill) About() About {
	return About{
		Name:  "seckill",
		Short: "A flash sale: many buyers, few pieces",
		Long: `Hold a flash sale: many buyers want few pieces. Each reads the stock, thinks for a moment
and writes it back. Without a lock everyone reads the stock before the first one pays, and
the shop sells what it does not have. Under the lock it sells exactly its stock, and each
write shows the fencing token of its lease. Optimistic buyers take no lock: their write
takes effect only if the stock is still what they read, or else they start over.`,
		Examples:   []string{"", "--buyers 200 --stock 20 --processes 8", "--strategy lock --no-wait --retries 3", "--json | jq .runs.lock"},
		Strategies: []Strategy{None, Lock, Optimistic},
		Headline:   fmt.Sprintf("%d buyers in %d processes, %d pieces", s.Buyers, s.Processes, s.Stock),
	}
}

// AddFlags implements Scenario.
func (s *Seckill) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&s.Buyers, "buyers", s.Buyers, "`N` buyers")
	flags.IntVar(&s.Stock, "stock", s.Stock, "`N` pieces to sell")
	flags.IntVar(&s.Processes, "processes", s.Processes, "`N` processes for the buyers")
	flags.BoolVar(&s.NoWait, "no-wait", s.NoWait, "let buyers give up instead of queueing for the lock")
	flags.IntVar(&s.Retries, "retries", s.Retries, "retry at most `N` times when too late or busy; -1 is no limit, or none with --no-wait")
}

// Limits for what one machine can do in reasonable time.
const maxBuyers, maxStock, maxRetries = 10_000, 1_000_000, 1_000_000

// Check implements Scenario.
func (s *Seckill) Check() error {
	return check(bound{"buyers", s.Buyers, 1, maxBuyers}, bound{"pieces in stock", s.Stock, 1, maxStock},
		bound{"processes", s.Processes, 1, min(maxProcesses, s.Buyers)}, bound{"retries", s.Retries, -1, maxRetries})
}

// A SeckillResult is the content of the shop's books after a sale.
type SeckillResult struct {
	Sold       int `json:"sold"`
	Left       int `json:"left"` // according to the shop
	Oversold   int `json:"oversold"`
	TurnedAway int `json:"turned_away"` // there was nothing left
	GaveUp     int `json:"gave_up"`     // too late, or busy, too often
	waits
	verdict
}

func (r *SeckillResult) figures() []figure {
	return append([]figure{
		count("sold", r.Sold), count("left, says the shop", r.Left), count("oversold", r.Oversold),
		count("buyers turned away", r.TurnedAway), count("buyers who gave up", r.GaveUp),
	}, r.waits.figures()...)
}

func (s *Seckill) play(ctx context.Context, r *run) (Result, error) {
	err := r.books.create(ctx,
		`CREATE TABLE shelf (item VARCHAR(20) PRIMARY KEY, pieces INTEGER NOT NULL)`,
		`CREATE TABLE sales (buyer INTEGER NOT NULL, item VARCHAR(20) NOT NULL)`,
		fmt.Sprintf(`INSERT INTO shelf VALUES ('phone', %d)`, s.Stock))
	if err != nil {
		return nil, err
	}
	a, err := r.audience(ctx, s.Processes, s.Buyers, "buyers")
	if err != nil {
		return nil, err
	}
	res := &SeckillResult{TurnedAway: a.numbers[soldOut], GaveUp: a.numbers[gaveUp], waits: a.waits()}
	err = r.books.read(ctx, func(tx *tx) error {
		return errors.Join(tx.row(`SELECT count(*) FROM sales`).Scan(&res.Sold), tx.row(`SELECT pieces FROM shelf`).Scan(&res.Left))
	})
	res.Oversold = max(0, res.Sold-s.Stock)
	res.verdict = s.judge(res, a.numbers[sold])
	return res, err
}

// judge checks the rules of an honest shop. It sold only what it had, and nothing twice. It knows
// what is left, and turned nobody away before it was sold out.
func (s *Seckill) judge(r *SeckillResult, told int) verdict {
	return judge(
		rule{r.Oversold == 0, fmt.Sprintf("sold %d of %d pieces", r.Sold, s.Stock)},
		rule{r.Sold+r.Left == s.Stock, fmt.Sprintf("%d sold and %d left of %d", r.Sold, r.Left, s.Stock)},
		rule{r.Sold == told, fmt.Sprintf("%d buyers were sold a piece, the books have %d", told, r.Sold)},
		rule{told+r.TurnedAway+r.GaveUp == s.Buyers, fmt.Sprintf("%d of %d buyers got an answer", told+r.TurnedAway+r.GaveUp, s.Buyers)},
		rule{r.TurnedAway == 0 || r.Sold >= s.Stock, "buyers were turned away before it was sold out"},
	)
}

func (s *Seckill) work(ctx context.Context, w *worker) error {
	return w.crowd(w.share(s.Buyers, s.Processes), func(buyer int) (message, error) {
		outcome, err := s.buy(ctx, w, buyer)
		return message{What: done, Number: outcome}, err
	})
}

// errLate means that somebody else wrote between an optimistic buyer's read and its write.
var errLate = errors.New("somebody else was faster")

// buy makes one buyer's purchase, including retries.
func (s *Seckill) buy(ctx context.Context, w *worker, buyer int) (outcome int, err error) {
	var opts []leasehold.Option
	if s.NoWait {
		opts = append(opts, leasehold.Wait(0))
	}
	for try := 0; ; try++ {
		err = again(func() error {
			return w.under(ctx, w.Resource, func(ctx context.Context, t *ticket) (err error) {
				outcome, err = s.sell(ctx, w, buyer, t)
				return err
			}, opts...)
		})
		if !errors.Is(err, leasehold.ErrBusy) && !errors.Is(err, errLate) {
			return outcome, err
		}
		if try == s.most() {
			return gaveUp, nil
		}
		if err := think(ctx); err != nil {
			return 0, err
		}
	}
}

// most returns how many retries a buyer makes; -1 is without limit. Even then a sale ends: an
// optimistic buyer is late only if another succeeded, and each buyer that queues for the lock is
// served.
func (s *Seckill) most() int {
	if s.NoWait {
		return max(0, s.Retries)
	}
	return s.Retries
}

// sell is the naive purchase: read the stock, think, write it back. After an error the buyer got
// nothing.
func (s *Seckill) sell(ctx context.Context, w *worker, buyer int, t *ticket) (outcome int, err error) {
	pieces, err := w.books.number(ctx, t, `SELECT pieces FROM shelf WHERE item = 'phone'`)
	if err != nil || pieces <= 0 {
		return soldOut, err
	}
	if err := errors.Join(w.meet(ctx), think(ctx)); err != nil {
		return 0, err
	}
	err = w.books.step(ctx, t, func(tx *tx) error {
		if w.Strategy == Optimistic {
			found, err := tx.write(`UPDATE shelf SET pieces = ? WHERE item = 'phone' AND pieces = ?`, pieces-1, pieces)
			if err != nil || found == 0 {
				return errors.Join(err, errLate)
			}
		} else if _, err := tx.write(`UPDATE shelf SET pieces = ? WHERE item = 'phone'`, pieces-1); err != nil {
			return err
		}
		_, err := tx.write(`INSERT INTO sales VALUES (?, 'phone')`, buyer)
		return err
	})
	return sold, err
}
