package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// Inventory is a shop that takes orders of several pieces. It compares the stock with the order,
// and then subtracts. Two orders that each fit alone can take the stock below zero.
type Inventory struct {
	Items      int   `json:"items"`
	Stock      int   `json:"stock"`      // of each item
	Quantities []int `json:"quantities"` // one order of each quantity, for each item
	Processes  int   `json:"processes"`
}

func newInventory() *Inventory {
	return &Inventory{Items: 10, Stock: 2, Quantities: []int{1, 2}, Processes: 2}
}

// About implements Scenario.
func (s *Inventory) About() About {
	return About{
		Name:  "inventory",
		Short: "Orders of several pieces against one stock",
		Long: `Take orders for items that are short: for each item one order of one piece and one of two,
against a stock of two. Each order reads the stock, finds that there is enough, thinks for a
moment and subtracts. Without a lock both find enough, and the stock goes below zero. Under
the item's lock one of the two is refused. Optimistic orders subtract in one statement, and
only if there is still enough.`,
		Examples:   []string{"", "--stock 10 --quantities 3,4,5 --processes 3"},
		Strategies: []Strategy{None, Lock, Optimistic},
		Headline:   fmt.Sprintf("%d items, %d pieces of each, orders for %v of each, %d processes", s.Items, s.Stock, s.Quantities, s.Processes),
	}
}

// AddFlags implements Scenario.
func (s *Inventory) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&s.Items, "items", s.Items, "`N` items, each with its own lock")
	flags.IntVar(&s.Stock, "stock", s.Stock, "`N` pieces of each item")
	flags.IntSliceVar(&s.Quantities, "quantities", s.Quantities, "`PIECES` of each order for an item, separated by commas")
	flags.IntVar(&s.Processes, "processes", s.Processes, "`N` processes for the orders")
}

// Check implements Scenario.
func (s *Inventory) Check() error {
	bounds := []bound{
		{"items", s.Items, 1, 1000}, {"pieces in stock", s.Stock, 1, maxStock},
		{"orders for an item", len(s.Quantities), 1, 1000}, {"orders in all", s.Items * len(s.Quantities), 1, maxBuyers},
		{"processes", s.Processes, 1, maxProcesses},
	}
	for _, q := range s.Quantities {
		bounds = append(bounds, bound{"pieces in an order", q, 1, maxStock})
	}
	return check(bounds...)
}

// An InventoryResult is the content of the warehouse's books.
type InventoryResult struct {
	Accepted  int `json:"accepted"` // number of orders
	Refused   int `json:"refused"`
	Pieces    int `json:"pieces"` // pieces sold, of all items
	Left      int `json:"left"`
	BelowZero int `json:"below_zero"` // number of items
	Lowest    int `json:"lowest"`     // lowest stock of an item
	waits
	verdict
}

func (r *InventoryResult) figures() []figure {
	return append([]figure{
		count("orders accepted", r.Accepted), count("orders refused", r.Refused), count("pieces sold", r.Pieces),
		count("pieces left", r.Left), count("items below zero", r.BelowZero), count("lowest stock", r.Lowest),
	}, r.waits.figures()...)
}

func (s *Inventory) play(ctx context.Context, r *run) (Result, error) {
	statements := []string{
		`CREATE TABLE stock (item INTEGER PRIMARY KEY, pieces INTEGER NOT NULL)`,
		`CREATE TABLE orders (item INTEGER NOT NULL, pieces INTEGER NOT NULL)`,
	}
	for item := range s.Items {
		statements = append(statements, fmt.Sprintf(`INSERT INTO stock VALUES (%d, %d)`, item, s.Stock))
	}
	if err := r.books.create(ctx, statements...); err != nil {
		return nil, err
	}
	a, err := r.audience(ctx, s.Processes, s.Items*len(s.Quantities), "orders")
	if err != nil {
		return nil, err
	}
	res := &InventoryResult{Accepted: a.numbers[sold], Refused: a.numbers[soldOut], waits: a.waits()}
	orders, wrong := 0, 0
	err = r.books.read(ctx, func(tx *tx) error {
		return errors.Join(
			tx.row(`SELECT count(*), COALESCE(SUM(pieces), 0) FROM orders`).Scan(&orders, &res.Pieces),
			tx.row(`SELECT SUM(pieces), MIN(pieces), COUNT(CASE WHEN pieces < 0 THEN 1 END) FROM stock`).Scan(&res.Left, &res.Lowest, &res.BelowZero),
			tx.row(`SELECT count(*) FROM stock WHERE pieces <> ? - COALESCE((SELECT SUM(pieces) FROM orders WHERE orders.item = stock.item), 0)`, s.Stock).Scan(&wrong),
		)
	})
	res.verdict = judge(
		rule{res.BelowZero == 0, fmt.Sprintf("%d items have less than nothing, the lowest %d", res.BelowZero, res.Lowest)},
		rule{wrong == 0, fmt.Sprintf("the stock of %d items does not fit their orders", wrong)},
		rule{orders == res.Accepted, fmt.Sprintf("%d orders were accepted, the books have %d", res.Accepted, orders)},
		rule{res.Accepted+res.Refused == s.Items*len(s.Quantities), "not every order got an answer"},
	)
	return res, err
}

func (s *Inventory) work(ctx context.Context, w *worker) error {
	// Consecutive orders are for the same item, in different processes.
	return w.crowd(w.share(s.Items*len(s.Quantities), s.Processes), func(order int) (message, error) {
		item, pieces := order/len(s.Quantities), s.Quantities[order%len(s.Quantities)]
		var outcome int
		err := again(func() error {
			return w.under(ctx, fmt.Sprintf("%s/%d", w.Resource, item), func(ctx context.Context, t *ticket) (err error) {
				outcome, err = s.take(ctx, w, item, pieces, t)
				return err
			})
		})
		return message{What: done, Number: outcome}, err
	})
}

// take handles one order: compare, think, subtract.
func (s *Inventory) take(ctx context.Context, w *worker, item, pieces int, t *ticket) (outcome int, err error) {
	left, err := w.books.number(ctx, t, `SELECT pieces FROM stock WHERE item = ?`, item)
	if err != nil || left < pieces {
		return soldOut, err
	}
	if err := errors.Join(w.meet(ctx), think(ctx)); err != nil {
		return soldOut, err
	}
	err = w.books.step(ctx, t, func(tx *tx) error {
		if w.Strategy == Optimistic {
			found, err := tx.write(`UPDATE stock SET pieces = pieces - ? WHERE item = ? AND pieces >= ?`, pieces, item, pieces)
			if err != nil || found == 0 {
				return errors.Join(err, errLate)
			}
		} else if _, err := tx.write(`UPDATE stock SET pieces = pieces - ? WHERE item = ?`, pieces, item); err != nil {
			return err
		}
		_, err := tx.write(`INSERT INTO orders VALUES (?, ?)`, item, pieces)
		return err
	})
	if errors.Is(err, errLate) {
		return soldOut, nil // the stock only falls, so there will never be enough
	}
	return sold, err
}
