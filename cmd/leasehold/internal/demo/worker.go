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
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/waiting"
	"github.com/leasehold-go/leasehold/stores"
)

// A worker is the state of a process of a scenario, in that process.
type worker struct {
	order
	books  *books
	store  driver.Driver // nil in a run without a lock, as is locks
	locks  *leasehold.Locker
	lines  <-chan []byte // from the parent
	met    meeting
	opened time.Time // when all processes began

	mu  sync.Mutex
	out *json.Encoder // guarded by mu
}

// Work runs a process of a scenario. It ends when in ends, because its parent has then ended.
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

// newWorker opens the books and the locks that o names.
func newWorker(ctx context.Context, o order) (_ *worker, err error) {
	w := &worker{order: o}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if o.Books.URL != "" {
		if w.books, err = o.Books.open(); err != nil {
			return nil, err
		}
	}
	if o.Store == "" {
		return w, nil
	}
	if w.store, err = stores.Open(ctx, o.Store); err != nil {
		return nil, err
	}
	w.locks, err = leasehold.New(w.store, &leasehold.Options{RequireFencing: true, TTL: o.TTL})
	return w, err
}

// close closes what newWorker has opened.
func (w *worker) close() {
	if w.locks != nil {
		w.locks.Close()
	}
	if w.store != nil {
		w.store.Close()
	}
	if w.books != nil {
		w.books.close()
	}
}

func (w *worker) say(m message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Encode(m)
}

// ready waits until all processes are ready.
func (w *worker) ready() error {
	if err := w.say(message{What: ready}); err != nil {
		return err
	}
	at, err := strconv.ParseInt(string(<-w.lines), 10, 64)
	if err != nil {
		return fmt.Errorf("read when to begin: %w", err)
	}
	now := time.Now()
	w.opened = now.Add(-now.Sub(time.Unix(0, at))) // with a monotonic reading
	return nil
}

// A meeting lets actors without a lock wait for each other.
type meeting struct {
	once sync.Once
	all  chan struct{} // closed when all of them have come
}

// meet does nothing in a run under a lock. Otherwise it waits until each actor of every process has
// read what it is about to write, or has finished. So each of them decides by what the first one
// has seen, however the machine schedules them.
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

// crowd makes actors call do at the same time, once all processes are ready, and reports the outcome
// of each. Their errors are alike, so it returns only one.
func (w *worker) crowd(actors []int, do func(actor int) (message, error)) error {
	if err := w.ready(); err != nil {
		return err
	}
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

// share returns those of n actors that this process plays.
func (w *worker) share(n, processes int) []int {
	var mine []int
	for i := w.Process; i < n; i += processes {
		mine = append(mine, i)
	}
	return mine
}

// errLost means that the lease ended before the books accepted the write. Nothing was written.
var errLost = errors.New("the lease was lost before the write")

// under acquires name and calls do with the ticket for the books. In a run without a lock it only
// calls do. errLost means that nothing that do wrote counts.
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

// patience limits how long a store may fail to answer.
const patience = 15 * time.Second

// acquire is Acquire, repeated while the outcome is unknown.
func (w *worker) acquire(ctx context.Context, name string, opts ...leasehold.Option) (*leasehold.Lease, error) {
	return w.acquireTelling(ctx, func() error { return nil }, name, opts...)
}

// acquireTelling is acquire that calls tell before it repeats the call.
func (w *worker) acquireTelling(ctx context.Context, tell func() error, name string, opts ...leasehold.Option) (*leasehold.Lease, error) {
	for end := time.Now().Add(patience); ; {
		lease, err := w.locks.Acquire(ctx, name, opts...)
		if err == nil || isAnswer(err) || ctx.Err() != nil || time.Now().After(end) {
			return lease, err
		}
		if err := errors.Join(tell(), think(ctx)); err != nil {
			return nil, err
		}
	}
}

// holding calls do under lease, and releases the lease.
func (w *worker) holding(ctx context.Context, lease *leasehold.Lease, do func(held context.Context, t *ticket) error) error {
	// If the lease was lost, the books accepted the token, or err says that they did not. If the
	// release is unknown, the lease expires, and others wait for that.
	err, _ := w.holdingUntil(ctx, lease, do)
	return err
}

// holdingUntil is holding that also returns the outcome of the release.
func (w *worker) holdingUntil(ctx context.Context, lease *leasehold.Lease, do func(held context.Context, t *ticket) error) (err, released error) {
	held := lease.Context()
	err = do(held, ticketOf(lease))
	if err != nil && (held.Err() != nil || errors.Is(err, fence.ErrStale)) {
		err = errLost // database/sql would say only that the context has ended
	}
	return err, lease.Release(ctx)
}

// isAnswer reports whether err is a decision of the store or the library.
func isAnswer(err error) bool {
	return slices.ContainsFunc([]error{
		leasehold.ErrBusy, leasehold.ErrLost, leasehold.ErrReleased, leasehold.ErrUnsupported,
		leasehold.ErrInvalidName, leasehold.ErrInvalidOption, leasehold.ErrDeadlock, leasehold.ErrClosed,
	}, func(answer error) bool { return errors.Is(err, answer) })
}

// again repeats do if its lease was lost. After ten attempts it returns errLost, because the locks
// of the store may not exclude each other.
func again(do func() error) error {
	for lost := 1; ; lost++ {
		if err := do(); !errors.Is(err, errLost) || lost == 10 {
			return err
		}
	}
}

// A naive program does something between its read and its write, such as asking for the address or
// the payment. That takes long compared with the read and the write.
const thinkLeast, thinkMost = 10 * time.Millisecond, 30 * time.Millisecond

func think(ctx context.Context) error {
	return pause(ctx, thinkLeast+rand.N(thinkMost-thinkLeast))
}

// pause sleeps for d. It returns the cause if ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	_, err := waiting.Sleep(ctx, nil, nil, d)
	return err
}
