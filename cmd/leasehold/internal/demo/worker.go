package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/stores"
)

// A worker is a process from the inside.
type worker struct {
	order
	books  *books
	locks  *leasehold.Locker // nil without a lock
	lines  <-chan []byte     // from the parent
	met    meeting
	opened time.Time
	close  func()

	mu  sync.Mutex
	out *json.Encoder // guarded by mu
}

// Work is a process of a scenario. It ends as soon as in ends, because the parent is gone
// then.
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
	s, err := find(o.Scenario)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(o.Settings, s); err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	w, err := newWorker(ctx, o)
	if err != nil {
		return err
	}
	defer w.close()
	w.lines, w.out = lines, json.NewEncoder(out)
	return s.work(ctx, w)
}

func newWorker(ctx context.Context, o order) (*worker, error) {
	b, err := o.Books.open()
	if err != nil {
		return nil, err
	}
	if o.Store == "" {
		return &worker{order: o, books: b, close: func() { b.close() }}, nil
	}
	w, err := newLocks(ctx, o)
	if err != nil {
		b.close()
		return nil, err
	}
	w.books = b
	closeLocks := w.close
	w.close = func() {
		closeLocks()
		b.close()
	}
	return w, nil
}

// newLocks returns a worker that has locks and no books.
func newLocks(ctx context.Context, o order) (*worker, error) {
	d, err := stores.Open(ctx, o.Store)
	if err != nil {
		return nil, err
	}
	locks, err := leasehold.New(d, &leasehold.Options{RequireFencing: true, TTL: o.TTL})
	if err != nil {
		d.Close()
		return nil, err
	}
	return &worker{order: o, locks: locks, close: func() {
		locks.Close()
		d.Close()
	}}, nil
}

func (w *worker) say(m message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Encode(m)
}

// ready waits until all processes are.
func (w *worker) ready() error {
	if err := w.say(message{What: ready}); err != nil {
		return err
	}
	<-w.lines
	w.opened = time.Now()
	return nil
}

// A meeting is where actors who take no lock wait for each other.
type meeting struct {
	once sync.Once
	all  chan struct{} // closed when all of them are there
}

// meet waits, in a run without a lock, until each actor of every process has read what it is about to write, or
// is done. So each of them decides by what the first has seen, however the machine spreads them over time.
func (w *worker) meet(ctx context.Context) error {
	if w.locks != nil {
		return nil
	}
	w.met.once.Do(func() {
		w.met.all = make(chan struct{})
		go func() {
			<-w.lines // goOn
			close(w.met.all)
		}()
	})
	if err := w.say(message{What: looked}); err != nil {
		return err
	}
	select {
	case <-w.met.all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// crowd makes actors do something all at once, and reports the outcome of each. Their errors are
// alike, so it returns only one of them.
func (w *worker) crowd(actors []int, do func(actor int) (message, error)) error {
	errs := make(chan error, len(actors))
	var wg sync.WaitGroup
	for _, actor := range actors {
		wg.Go(func() {
			m, err := do(actor)
			if err == nil {
				m.Actor, m.Wait = actor, time.Since(w.opened)
				err = w.say(m)
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

// share returns the actors, of n, that this one of the processes plays.
func (w *worker) share(n, processes int) []int {
	var mine []int
	for i := w.Process; i < n; i += processes {
		mine = append(mine, i)
	}
	return mine
}

// errLost: the lease ended before the books took the write, so that nothing was written.
var errLost = errors.New("the lease was lost before the write")

// under acquires name and calls do with what to show to the books, or calls do at once in
// a run without a lock. errLost: nothing that do wrote counts.
func (w *worker) under(ctx context.Context, name string, do func(held context.Context, t *ticket) error, opts ...leasehold.Option) error {
	if w.locks == nil {
		return do(ctx, nil)
	}
	lease, err := w.acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	return w.holding(ctx, lease, do)
}

// patience is how long a store may go on without an answer.
const patience = 15 * time.Second

// acquire is Acquire that asks again where the outcome is unknown.
func (w *worker) acquire(ctx context.Context, name string, opts ...leasehold.Option) (*leasehold.Lease, error) {
	return w.acquireTelling(ctx, func(error) error { return nil }, name, opts...)
}

// acquireTelling tells of each error before it asks again.
func (w *worker) acquireTelling(ctx context.Context, tell func(err error) error, name string, opts ...leasehold.Option) (*leasehold.Lease, error) {
	for end := time.Now().Add(patience); ; {
		lease, err := w.locks.Acquire(ctx, name, opts...)
		if err == nil || isAnswer(err) || ctx.Err() != nil || time.Now().After(end) {
			return lease, err
		}
		if err := errors.Join(tell(err), think(ctx)); err != nil {
			return nil, err
		}
	}
}

// holding calls do under lease, and gives the lease up.
func (w *worker) holding(ctx context.Context, lease *leasehold.Lease, do func(held context.Context, t *ticket) error) error {
	// Lost: the books took the token, or err says that they did not. Unknown: the lease
	// ends by itself, for which others wait.
	err, _ := w.holdingUntil(ctx, lease, do)
	return err
}

// holdingUntil is holding that tells what became of the lease, too.
func (w *worker) holdingUntil(ctx context.Context, lease *leasehold.Lease, do func(held context.Context, t *ticket) error) (err, released error) {
	held := lease.Context()
	err = do(held, ticketOf(lease))
	if err != nil && (held.Err() != nil || errors.Is(err, fence.ErrStale)) {
		err = errLost // database/sql says only that the context has ended
	}
	return err, lease.Release(ctx)
}

// isAnswer reports whether the store, or the library, has decided.
func isAnswer(err error) bool {
	for _, answer := range []error{
		leasehold.ErrBusy, leasehold.ErrLost, leasehold.ErrReleased, leasehold.ErrUnsupported,
		leasehold.ErrInvalidName, leasehold.ErrInvalidOption, leasehold.ErrDeadlock, leasehold.ErrClosed,
	} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}

// again repeats do while its lease is lost, on and on only with a store whose locks do not
// exclude each other: then it returns errLost.
func again(do func() error) error {
	for lost := 1; ; lost++ {
		if err := do(); !errors.Is(err, errLost) || lost == 10 {
			return err
		}
	}
}

// Thinking is what a naive program does between its read and its write: ask for the
// price, the address, the payment. It is long against both, as it is in life.
const thinkLeast, thinkMost = 10 * time.Millisecond, 30 * time.Millisecond

func think(ctx context.Context) error {
	return pause(ctx, thinkLeast+rand.N(thinkMost-thinkLeast))
}

// pause returns the cause when ctx ends before d is over.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
