// Package seckill is the flash sale of the distributed-lock textbooks: many buyers, few
// pieces, and a shop that reads its stock and writes it back in two steps. The buyers
// are goroutines of several processes, the shop is a database file. Without a lock the
// shop sells pieces it does not have.
package seckill

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrSale is wrapped by the errors about a sale that cannot be held.
var ErrSale = errors.New("flash sale")

// A Sale is what is sold to how many.
type Sale struct {
	Buyers    int `json:"buyers"`
	Stock     int `json:"stock"`
	Processes int `json:"processes"`
}

// Bounds that one machine serves in reasonable time.
const maxBuyers, maxProcesses, maxStock = 10_000, 64, 1_000_000

// Check returns nil for a sale that can be held, else an error that wraps ErrSale.
func (s Sale) Check() error {
	switch {
	case s.Buyers < 1 || s.Buyers > maxBuyers:
		return fmt.Errorf("%w: %d buyers, want 1 to %d", ErrSale, s.Buyers, maxBuyers)
	case s.Stock < 1 || s.Stock > maxStock:
		return fmt.Errorf("%w: a stock of %d, want 1 to %d", ErrSale, s.Stock, maxStock)
	case s.Processes < 1 || s.Processes > maxProcesses:
		return fmt.Errorf("%w: %d processes, want 1 to %d", ErrSale, s.Processes, maxProcesses)
	case s.Processes > s.Buyers:
		return fmt.Errorf("%w: %d processes for %d buyers, want at most one for each", ErrSale, s.Processes, s.Buyers)
	}
	return nil
}

// share is how many of the buyers process i serves.
func (s Sale) share(i int) int {
	n := s.Buyers / s.Processes
	if i < s.Buyers%s.Processes {
		n++
	}
	return n
}

// A Result is what the shop's books say after a sale. Waits are from the start of the
// sale until a buyer has its answer.
type Result struct {
	Sold       int     `json:"sold"`
	Left       int     `json:"left"` // what the shop believes it still has
	Oversold   int     `json:"oversold"`
	TurnedAway int     `json:"turned_away"`
	WaitP50    float64 `json:"wait_p50_ms"`
	WaitP99    float64 `json:"wait_p99_ms"`
	Total      float64 `json:"total_ms"`
}

// Right reports whether the books are those of an honest shop: it sold to everybody it
// could, nothing twice, and knows what is left.
func (s Sale) Right(r Result) bool {
	sold := min(s.Buyers, s.Stock)
	return r.Sold == sold && r.Left == s.Stock-sold && r.Oversold == 0 && r.TurnedAway == s.Buyers-sold
}

func (r *Result) addWaits(waits []time.Duration, total time.Duration) {
	slices.Sort(waits)
	r.WaitP50, r.WaitP99 = milliseconds(quantile(waits, 0.5)), milliseconds(quantile(waits, 0.99))
	r.Total = milliseconds(total)
}

// quantile returns the smallest of the sorted values that at least the share q of them
// do not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}
