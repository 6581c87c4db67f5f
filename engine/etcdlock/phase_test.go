package etcdlock

import (
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

var phaseNames = [...]string{idle: "idle", queued: "queued", held: "held", leaving: "leaving", over: "over"}

var eventNames = [...]string{yes: "yes", no: "no", unknown: "unknown", lost: "lost", release: "release", unwanted: "unwanted"}

// Each cell of the table is what the code does, with what follows from it: while something is
// uncertain, the driver deletes what may come; whoever waits is woken; whoever held is told,
// unless the deadline has told it; and what is over has left nothing behind.
func TestTheTableIsWhatHappens(t *testing.T) {
	each := func(from phase, e event, to phase) {
		name := phaseNames[from] + "/" + eventNames[e]
		for _, kind := range []string{"", "put", "move"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				told := make(chan error, 2)
				d, p := placeIn(t, from, driver.Request{TTL: time.Minute, Queue: true, Lost: func(err error) { told <- err }})
				d.mu.Lock()
				var wake <-chan struct{}
				if from == queued {
					wake = p.waitFor(look{queue: []entry{{key: p.key, rev: p.rev}}, rev: 7}, boottime.Now())
				}
				s, want := p.in, to
				switch {
				case kind == "put" && from != over:
					awaiting(&p.unsure.puts, s)
				case kind == "move" && from != over:
					awaiting(&p.unsure.moves, newSession(time.Second, boottime.Now()))
				}
				if to == ends {
					if want = over; kind != "" {
						want = leaving
					}
				}
				p.on(e, errDeleted)
				got, cause, listed, spent := p.phase, p.cause, d.at(p.key) == p, s != nil && s.spent[p.key]
				d.mu.Unlock()
				if got != want {
					t.Fatalf("phase %d, want %d", got, want)
				}
				if (got >= leaving) != (cause != nil && errors.Is(cause, driver.ErrLost)) {
					t.Errorf("phase %d for %v", got, cause)
				}
				if listed != (got != over) || from != over && got == over && (s.places != 0 || spent != (kind == "put")) {
					t.Errorf("phase %d: listed %t, key spent %t, %d in its session", got, listed, spent, s.places)
				}
				late := time.After(10 * time.Second)
				if wake != nil && got != queued {
					select {
					case <-wake:
					case <-late:
						t.Fatal("nobody was woken")
					}
				}
				if from == held && got != held && e != unwanted {
					select {
					case err := <-told:
						if !errors.Is(err, driver.ErrLost) {
							t.Errorf("told %v", err)
						}
					case <-late:
						t.Fatal("nobody was told")
					}
				}
				d.Close()
				if len(told) > 0 {
					t.Errorf("phase %d after %d: told of %v", got, from, <-told)
				}
			})
		}
	}
	for from, row := range transitions {
		for e, to := range row {
			each(phase(from), event(e), to)
		}
	}
}

// A session that ends takes what is uncertain in it along, and what was in it.
func TestUncertainEndsWithItsSession(t *testing.T) {
	for _, in := range []phase{idle, queued, held, leaving} {
		d, p := placeIn(t, in, driver.Request{TTL: time.Minute})
		s, other := p.in, newSession(time.Second, boottime.Now())
		d.mu.Lock()
		awaiting(&p.unsure.puts, other)
		d.mu.Unlock()
		d.lose(other)
		if p.phase != in || p.unsure.mayCome() {
			t.Errorf("phase %d after %d, when another session ended; uncertain: %t", p.phase, in, p.unsure.mayCome())
		}
		d.lose(s)
		if p.phase != over {
			t.Errorf("phase %d after %d, when its session ended", p.phase, in)
		}
	}
}

// Once another claim of its owner has released the place, or its put was served, a put of the key is
// not sent: no tombstone would keep it out.
func TestNoPutOfAPlaceThatIsNotIdle(t *testing.T) {
	for _, in := range []phase{queued, held, leaving, over} {
		_, p := placeIn(t, in, driver.Request{TTL: time.Minute})
		if _, err := p.put(t.Context(), newSession(time.Minute, boottime.Now()), true); !errors.Is(err, errAgain) {
			t.Errorf("put in phase %d: %v; want it not to be sent", in, err)
		}
	}
}

// A claim that gives up by what it has read leaves a place alone that another claim of its owner has
// released or been granted since: a put that comes late would make a key that nobody has, or the
// other would lose what it holds.
func TestGivingUpLeavesTheOtherClaimItsPlace(t *testing.T) {
	ways := map[string]func(c *claim, p *place) error{
		"refused":  func(c *claim, p *place) error { return c.refuse(p, []entry{{}}) },
		"avoiding": func(c *claim, p *place) error { return c.avoid(t.Context(), p) },
		"adopting": func(c *claim, p *place) error { return c.adopt(t.Context(), p, entry{key: "other"}) },
		"heavy":    func(c *claim, p *place) error { return c.tooHeavy(t.Context(), p) },
	}
	for way, giveUp := range ways {
		for _, since := range []phase{held, leaving} {
			t.Run(way+"/"+phaseNames[since], func(t *testing.T) {
				told := make(chan error, 1)
				d, p := placeIn(t, idle, driver.Request{TTL: time.Minute, Lost: func(err error) { told <- err }})
				giving := &claim{d: d, req: driver.Request{Resource: "a", Owner: "owner", TTL: time.Minute}, dir: p.claim.dir}
				d.mu.Lock()
				giving.join(p)
				p.named.gone = true // nobody looks there for strays: there is no server
				if since == held {
					p.exists(5)
					p.on(yes, nil)
				} else {
					p.unsure.moves = []*session{p.in} // as with a put, but keepOut would send a tombstone for that
					p.claim.quit()
				}
				d.mu.Unlock()
				if err := giveUp(giving, p); !errors.Is(err, errAgain) {
					t.Errorf("%v; want errAgain", err)
				}
				if got := p.phase; got != since {
					t.Errorf("then %s; want it still %s", phaseNames[got], phaseNames[since])
				}
				d.Close()
				if len(told) > 0 {
					t.Errorf("the holder was told %v", <-told)
				}
			})
		}
	}
}
