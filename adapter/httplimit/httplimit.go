// Package httplimit limits how many HTTP requests are served at once, by key and over all instances
// of a service. A limit per tenant keeps one tenant from taking all of a service's time:
//
//	limit := httplimit.Limit{
//		Locks: locks,
//		Name:  func(r *http.Request) string { return "api/" + r.Header.Get("X-Tenant") },
//		Most:  5,
//	}
//	http.Handle("/", limit.Handler(api))
//
// Each request holds a shared lease while it is served. So a slot that a killed instance used is free
// again after the TTL. Requests that wait are served in the order of their arrival if the engine is
// fair. An operator can change the limit at any time with [leasehold.Locker.SetLimit].
package httplimit

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
)

// A Limit admits at most Most requests of one name at once. Its fields must not change once Handler
// was called.
type Limit struct {
	Locks *leasehold.Locker // of the engine that all instances share
	// Name returns the resource that a request is counted for, such as "api/" and the tenant. A
	// request with the name "" is served without a limit. One whose name the engine refuses, because
	// it is too long, say, is answered with 400 Bad Request.
	Name func(r *http.Request) string
	// Most is the limit, at least 1. All instances should name the same one; see [leasehold.Limit].
	Most int
	// Weight returns how much of Most a request uses. Less than 1 counts as 1, such as the
	// ContentLength of a body of unknown length. A request that weighs more than Most is answered
	// with 413 Content Too Large. Nil means 1 for each.
	Weight func(r *http.Request) int
	// Wait is how long a request may wait for its turn. Zero means that it is refused at once.
	Wait time.Duration
	// FailOpen serves requests when the engine does not answer. Otherwise they are refused with 503
	// Service Unavailable. A request that Limit could never admit is always refused so: a field is out
	// of range, the engine has no limits, or the request already has a slot.
	FailOpen bool
	// Error is called when the limit could not be checked, when a lease was lost while its request was
	// served, or when the outcome of its release is unknown. Nil ignores such errors.
	Error func(r *http.Request, err error)

	took durations
}

// Handler returns a handler that serves what l admits with next.
//
// A request that is refused, or that an operator removes from the queue, gets 429 Too Many Requests
// with a Retry-After header. Its value is an estimate from how many others wait and from how long
// requests took here; it is from 1 to 60 seconds. The slot is free when next returns or panics, also
// for a client that has gone away. The context of the request ends when the client goes away or the
// lease is lost. [leasehold.FromContext] returns the lease.
func (l *Limit) Handler(next http.Handler) http.Handler {
	if l.Locks == nil || l.Name == nil || l.Most < 1 {
		panic("httplimit: a Limit needs Locks, Name, and Most of at least 1")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := l.Name(r)
		if name == "" {
			next.ServeHTTP(w, r)
			return
		}
		l.serve(w, r, name, next)
	})
}

func (l *Limit) serve(w http.ResponseWriter, r *http.Request, name string, next http.Handler) {
	opts, weight := []leasehold.Option{leasehold.Limit(l.Most), leasehold.Wait(l.Wait)}, 1
	if l.Weight != nil {
		weight = max(l.Weight(r), 1)
		opts = append(opts, leasehold.Weight(weight))
	}
	served := false
	err := l.Locks.Do(r.Context(), name, func(ctx context.Context) error {
		served = true
		begun := time.Now()
		defer func() { l.took.add(time.Since(begun)) }()
		next.ServeHTTP(w, r.WithContext(ctx))
		return nil
	}, opts...)
	switch {
	case err == nil:
	case served:
		l.tell(r, err)
	case errors.Is(err, leasehold.ErrBusy), errors.Is(err, leasehold.ErrEvicted): // or removed from the queue
		retry := l.retryAfter(r.Context(), name)
		w.Header().Set("Retry-After", strconv.Itoa(retry))
		http.Error(w, "too many requests at once", http.StatusTooManyRequests)
	case errors.Is(err, leasehold.ErrInvalidName):
		http.Error(w, "the name to count the request for is invalid", http.StatusBadRequest)
	case errors.Is(err, leasehold.ErrTooHeavy), weight > l.Most: // maybe no valid weight at all
		http.Error(w, "the request is heavier than the limit", http.StatusRequestEntityTooLarge)
	case r.Context().Err() != nil: // nobody would read an answer
	case l.FailOpen && !errors.Is(err, leasehold.ErrInvalidOption) && !errors.Is(err, leasehold.ErrUnsupported) && !errors.Is(err, leasehold.ErrDeadlock):
		l.tell(r, err)
		next.ServeHTTP(w, r)
	default:
		l.tell(r, err)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the limit cannot be checked now", http.StatusServiceUnavailable)
	}
}

func (l *Limit) tell(r *http.Request, err error) {
	if l.Error != nil {
		l.Error(r, err)
	}
}

// leastRetry and mostRetry bound Retry-After, in seconds. lookBound bounds the call to the engine
// that it needs.
const (
	leastRetry, mostRetry = 1, 60
	lookBound             = time.Second
)

// retryAfter estimates in how many seconds a slot would be free for a request that queued now. That
// is the number of waiters and this request, times the mean duration, divided by the limit.
func (l *Limit) retryAfter(ctx context.Context, name string) int {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	ahead, most := 1, l.Most
	if st, err := l.Locks.Inspect(ctx, name); err == nil { // after an error, count no other waiters
		ahead += len(st.Waiters)
		if st.Limit > 0 {
			most = min(most, st.Limit)
		}
	}
	seconds := l.took.mean().Seconds() * float64(ahead) / float64(most)
	return int(min(max(math.Ceil(seconds), leastRetry), mostRetry))
}

// durations is a moving average of how long requests took. A new request counts for a tenth.
type durations struct {
	mu   sync.Mutex
	last time.Duration // guarded by mu
}

func (d *durations) add(took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == 0 {
		d.last = took
		return
	}
	d.last += (took - d.last) / 10
}

func (d *durations) mean() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}
