package locktest_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

var (
	stormSeed = flag.Uint64("storm.seed", 0, "the one storm to run, as it was printed")
	stormFor  = flag.Duration("storm.for", 2*time.Second, "how long to run storms")
)

// TestCoreStorm has clients of several Lockers do at random what clients do, over an engine in memory
// that is slow and loses answers, one storm after the other.
func TestCoreStorm(t *testing.T) {
	if *stormSeed != 0 {
		runStorm(t, *stormSeed)
		return
	}
	first, end, n := rand.Uint64(), time.Now().Add(*stormFor), uint64(0)
	for ; time.Now().Before(end) && !t.Failed(); n++ {
		runStorm(t, first+n)
	}
	t.Logf("%d storms", n)
}

const stormTTL = time.Second

// A storm is one bubble with its own engine.
type storm struct {
	t       *testing.T
	seed    uint64
	calm    bool // no call is cut short, no answer lost, nobody evicted
	keeps   bool // some Lockers keep leases
	server  *memory.Server
	lockers []*leasehold.Locker
	told    locktest.Pairs
	ctx     context.Context // of all calls
	stop    context.CancelFunc

	mu     sync.Mutex
	leases []*stormLease   // guarded by mu; in the order in which they began
	evicts map[string]bool // guarded by mu; by grant
	log    []string        // guarded by mu
	start  time.Time
}

// A stormLease is a lease that a client got.
type stormLease struct {
	*leasehold.Lease
	who     string
	shared  bool
	limit   int
	noRenew bool
}

// grant identifies the grant of a lease. Its owner would, but is not read: then it is not kept.
func (l *stormLease) grant() string { return grantOf(l.Name(), l.Token()) }

func grantOf(name string, token uint64) string { return fmt.Sprint(name, token>>10) }

func runStorm(t *testing.T, seed uint64) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		s := &storm{t: t, seed: seed, calm: rng.IntN(3) == 0, keeps: rng.IntN(2) == 0, server: memory.NewServer(), evicts: make(map[string]bool), start: time.Now()}
		s.ctx, s.stop = context.WithCancel(context.Background())
		defer s.stop()
		s.open(rng)
		s.rage(rng)
		s.checkOver()
	})
}

func (s *storm) open(rng *rand.Rand) {
	for i := range 2 + rng.IntN(3) {
		d := &stormDriver{Driver: s.server.Connect(), storm: s, rng: rand.New(rand.NewPCG(s.seed, uint64(1+i)))}
		o := &leasehold.Options{TTL: stormTTL, Note: "storm", Trace: s.told.Trace}
		if s.keeps && rng.IntN(2) == 0 {
			o.Keep = stormTTL / time.Duration(1+rng.IntN(20))
		}
		l, err := leasehold.New(d, o)
		if err != nil {
			s.t.Fatal(err)
		}
		s.lockers = append(s.lockers, l)
	}
}

// rage has all clients do what they do until they are through.
func (s *storm) rage(rng *rand.Rand) {
	var clients sync.WaitGroup
	begin := func(locker int, does func(c *stormClient)) {
		name := fmt.Sprintf("p%d.%d", locker+1, rng.IntN(1000))
		c := &stormClient{storm: s, name: name, locker: s.lockers[locker], rng: rand.New(rand.NewPCG(s.seed, rng.Uint64()))}
		clients.Go(func() { does(c) })
	}
	for i := range s.lockers {
		for range 1 + rng.IntN(4) {
			begin(i, (*stormClient).lock)
		}
	}
	if !s.calm && rng.IntN(2) == 0 {
		begin(0, (*stormClient).evict)
	}
	if !s.calm && rng.IntN(3) == 0 {
		begin(rng.IntN(len(s.lockers)), (*stormClient).close)
	}
	through := make(chan struct{})
	go func() {
		clients.Wait()
		close(through)
	}()
	select {
	case <-through:
	case <-time.After(time.Hour):
		s.fail("somebody still waits after an hour")
		s.stop()
		<-through
	}
}

// checkOver: once all have gone, nothing is left; at once, where nobody had to give up.
func (s *storm) checkOver() {
	if s.calm && !s.keeps {
		s.checkLeft()
	}
	for _, l := range s.lockers {
		l.Close()
	}
	time.Sleep(2*stormTTL + 5*time.Second)
	s.checkLeft()
	if err := s.told.Err(); err != nil {
		s.fail("%v", err)
	}
	for _, e := range s.told.Open() {
		s.fail("%+v has no end", e)
	}
}

func (s *storm) checkLeft() {
	d := s.server.Connect()
	for _, name := range stormNames {
		if state, err := d.Inspect(context.Background(), name); err != nil || len(state.Holders)+len(state.Waiters) > 0 {
			s.fail("left behind: %+v, %v", state, err)
		}
	}
}

// fail prints what has happened so far.
func (s *storm) fail(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed(format, args...)
}

// failed requires s.mu.
func (s *storm) failed(format string, args ...any) {
	first := !s.t.Failed()
	s.t.Errorf(format, args...)
	if first {
		for _, line := range s.log[max(0, len(s.log)-60):] {
			s.t.Log(line)
		}
		s.t.Logf("Run it again by -run 'TestCoreStorm$' -storm.seed %d", s.seed)
	}
}

func (s *storm) tell(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf("%10.6f  ", time.Since(s.start).Seconds())+fmt.Sprintf(format, args...))
}

// begun is how many leases have begun.
func (s *storm) begun() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.leases)
}

// begins checks a lease, by a call that began when so many leases had.
func (s *storm) begins(l *stormLease, asked int) {
	s.tell("%s holds %s, token %d.%d", l.who, l.Name(), l.Token()>>10, l.Token()&1023)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checkToken(l, asked)
	if l.Context().Err() == nil && !s.evicts[l.grant()] {
		s.checkAlone(l)
	}
	s.leases = append(s.leases, l)
}

// checkToken: tokens grow in the order of grants. What began before l was asked for was granted before; and what is
// exclusive too, before whatever began later, but where somebody was evicted.
func (s *storm) checkToken(l *stormLease, asked int) {
	handed := false
	for _, o := range s.leases {
		handed = handed || o.grant() == l.grant()
	}
	for i, o := range s.leases {
		if o.Name() != l.Name() {
			continue
		}
		alone := !o.shared && !l.shared && !s.evicts[l.grant()] && !s.evicts[o.grant()]
		if (alone || o.grant() == l.grant() || i < asked && !handed) && l.Token() <= o.Token() {
			s.failed("the token of %s does not grow: %d after %d of %s", l.who, l.Token(), o.Token(), o.who)
		}
	}
}

// checkAlone: of those who are not evicted an exclusive one believes alone, and no more than the
// least limit do together.
func (s *storm) checkAlone(l *stormLease) {
	together, limit := 1, l.limit
	for _, o := range s.leases {
		if o.Name() != l.Name() || s.evicts[o.grant()] || o.Context().Err() != nil {
			continue
		}
		if !o.shared || !l.shared {
			s.failed("%s and %s both believe to hold %s", o.who, l.who, l.Name())
		}
		together++
		if o.limit > 0 && (limit == 0 || o.limit < limit) {
			limit = o.limit
		}
	}
	if limit > 0 && together > limit {
		s.failed("%d believe to hold one of %d", together, limit)
	}
}

// evicting says that a grant may be evicted from now on.
func (s *storm) evicting(grant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evicts[grant] = true
}
