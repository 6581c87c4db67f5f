package seckill

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/stores"
	"github.com/leasehold-go/leasehold/fence"
)

// An order is the first line that a process of buyers reads from its input. A second
// line, whatever it says, starts the sale; the end of the input ends the process.
type order struct {
	Shop     string `json:"shop"`  // path of the shop's file
	Store    string `json:"store"` // URL of the lock store; "" is without a lock
	Resource string `json:"resource"`
	First    int    `json:"first"` // number of the first buyer
	Buyers   int    `json:"buyers"`
}

// A message is a line that a process of buyers writes: first Ready, then one a buyer.
type message struct {
	Ready bool          `json:"ready,omitempty"`
	Sold  bool          `json:"sold,omitempty"`
	Wait  time.Duration `json:"wait,omitempty"`
}

// Work is a process of buyers. It returns when all of them have their answer, and ends
// the whole process as soon as in ends, because the parent is gone then.
func Work(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := make(chan []byte)
	go func() {
		scan := bufio.NewScanner(in)
		for scan.Scan() {
			lines <- append([]byte(nil), scan.Bytes()...)
		}
		os.Exit(1)
	}()
	var o order
	if err := json.Unmarshal(<-lines, &o); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	c, err := newCrowd(ctx, o, out)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.tell(message{Ready: true}); err != nil {
		return err
	}
	<-lines
	return c.buy(ctx)
}

// A crowd is the buyers of one process.
type crowd struct {
	order
	shop  *shop
	locks *leasehold.Locker // nil: without a lock
	close func()

	mu  sync.Mutex
	out *json.Encoder // guarded by mu
}

func newCrowd(ctx context.Context, o order, out io.Writer) (*crowd, error) {
	s, err := openShop(ctx, o.Shop)
	if err != nil {
		return nil, err
	}
	c := &crowd{order: o, shop: s, close: func() { s.close() }, out: json.NewEncoder(out)}
	if o.Store == "" {
		return c, nil
	}
	d, _, err := stores.Open(ctx, o.Store)
	if err != nil {
		c.close()
		return nil, err
	}
	c.locks, err = leasehold.New(d, &leasehold.Options{RequireFencing: true})
	if err != nil {
		d.Close()
		c.close()
		return nil, err
	}
	c.close = func() {
		c.locks.Close()
		d.Close()
		s.close()
	}
	return c, nil
}

func (c *crowd) tell(m message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Encode(m)
}

// buy lets all buyers start at once. Of their errors, which are alike, it returns one.
func (c *crowd) buy(ctx context.Context) error {
	start := time.Now()
	errs := make(chan error, c.Buyers)
	var wg sync.WaitGroup
	for i := range c.Buyers {
		wg.Go(func() {
			sold, err := c.serve(ctx, c.First+i)
			if err == nil {
				err = c.tell(message{Sold: sold, Wait: time.Since(start)})
			}
			if err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

func (c *crowd) serve(ctx context.Context, buyer int) (bool, error) {
	if c.locks == nil {
		return c.shop.sell(ctx, buyer, nil)
	}
	for tries := 1; ; tries++ {
		sold, err := c.serveLocked(ctx, buyer)
		lost := errors.Is(err, fence.ErrStale) || errors.Is(err, leasehold.ErrLost)
		if !lost || tries == mostTries {
			return sold, err
		}
		// Nothing was sold to a buyer whose lease went to another: it queues again.
	}
}

// mostTries is far more than a store needs whose locks exclude each other.
const mostTries = 10

// serveLocked is the same purchase under the lock.
func (c *crowd) serveLocked(ctx context.Context, buyer int) (bool, error) {
	lease, err := c.locks.Acquire(ctx, c.Resource)
	if err != nil {
		return false, err
	}
	held := lease.Context()
	sold, err := c.shop.sell(held, buyer, &ticket{c.Resource, lease.Owner(), lease.Token()})
	if err != nil && held.Err() != nil {
		err = context.Cause(held) // database/sql says only that the context has ended
	}
	released := lease.Release(ctx)
	if errors.Is(released, leasehold.ErrLost) {
		released = nil // the shop took the token, or err says that it did not
	}
	return sold, errors.Join(err, released)
}
