package caslock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/links"
)

var errCut = errors.New("connection reset")

// A link is a store behind a network which does to the next write what it is told to.
type link struct {
	caslock.Store
	next    string // "": nothing
	late    func() // serves the write that was held up
	between func() // happens before a write is repeated
	sooner  bool   // the write that was held up is served before the next one
}

// over opens the store behind a link. If its versions are numbers, they are so behind the link too.
func over(t testing.TB, l *link) driver.Driver {
	if c, ok := l.Store.(caslock.Counter); ok {
		return process(t, struct {
			*link
			caslock.Counter
		}{l, c})
	}
	return process(t, l)
}

func (l *link) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	how := l.next
	l.next = ""
	write := func() (caslock.Version, error) { return l.Store.Write(ctx, name, value, was, life) }
	if l.sooner && l.late != nil {
		l.late()
		l.late = nil
	}
	switch how {
	case "lose answer":
		_, _ = write()
		return "", errCut
	case "unsent":
		return "", caslock.ErrUnsent
	case "hold up":
		l.late = func() { _, _ = l.Store.Write(context.Background(), name, value, was, life) }
		return "", errCut
	case "silent":
		l.late = func() { _, _ = l.Store.Write(context.Background(), name, value, was, life) }
		return "", links.ErrSilent
	case "repeat":
		_, _ = write()
		if l.between != nil {
			l.between()
		}
	}
	return write()
}

func stores() map[string]func() caslock.Store {
	return map[string]func() caslock.Store{
		"hashed":     func() caslock.Store { return &hashed{} },
		"counting":   func() caslock.Store { return &counting{} },
		"forgetting": func() caslock.Store { return &counting{forgets: true} },
		"still":      func() caslock.Store { return &counting{still: true} },
		"queueing":   func() caslock.Store { return &queueing{} },
		"example":    func() caslock.Store { return &table{rows: make(map[string]row)} },
	}
}

// overLink runs f on each store behind a link.
func overLink(t *testing.T, f func(t *testing.T, l *link)) {
	for name, store := range stores() {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) { f(t, &link{Store: store()}) })
		})
	}
}

// A write that comes after its claim was released changes nothing, whatever it was to do and
// whatever the name had.
func TestLateWriteIsRefused(t *testing.T) {
	calls := map[string]func(ctx context.Context, c driver.Claim) error{
		"Try":     func(ctx context.Context, c driver.Claim) error { _, err := c.Try(ctx); return err },
		"Renew":   func(ctx context.Context, c driver.Claim) error { _, err := c.Renew(ctx, ttl); return err },
		"Release": func(ctx context.Context, c driver.Claim) error { return c.Release(ctx, driver.End{}) },
	}
	for what, call := range calls {
		for _, used := range []bool{false, true} {
			t.Run(what, func(t *testing.T) {
				overLink(t, func(t *testing.T, l *link) {
					if s, ok := l.Store.(*counting); ok && s.forgets && what == "Try" {
						return // where nothing was ever, it leaves a lease that ends by itself
					}
					d, other := over(t, l), process(t, l.Store)
					if used {
						before := claimOf(t, other, driver.Request{Owner: "before"})
						claimtest.Granted(t, before)
						claimtest.Released(t, before)
					}
					c := claimOf(t, d, driver.Request{Owner: "a"})
					if what != "Try" {
						claimtest.Granted(t, c)
					}
					l.next = "hold up"
					if err := call(t.Context(), c); !errors.Is(err, errCut) {
						t.Fatalf("%s: %v; want its outcome to be unknown", what, err)
					}
					if err := c.Release(t.Context(), driver.End{}); err != nil && !(what == "Try" && errors.Is(err, driver.ErrLost)) {
						t.Fatalf("Release: %v", err)
					}
					l.late()
					next := claimOf(t, other, driver.Request{Owner: "b"})
					before := claimtest.Granted(t, next)
					claimtest.Released(t, next)
					l.late()
					if after := claimtest.Granted(t, next); after.Fence <= before.Fence {
						t.Errorf("fence %d after %d", after.Fence, before.Fence)
					}
				})
			})
		}
	}
}

// A limit that was set is not replaced by an earlier one that comes late, even if it seemed to be set already.
func TestLateLimitIsRefused(t *testing.T) {
	for _, used := range []bool{false, true} {
		t.Run(fmt.Sprint("used ", used), func(t *testing.T) {
			overLink(t, func(t *testing.T, l *link) {
				d, other := over(t, l).(driver.Operator), process(t, l.Store)
				if used {
					before := claimOf(t, other, driver.Request{Owner: "before"})
					claimtest.Granted(t, before)
					claimtest.Released(t, before)
				}
				l.next = "hold up"
				if err := d.SetLimit(t.Context(), "r", 5); !errors.Is(err, errCut) {
					t.Fatalf("SetLimit: %v; want its outcome to be unknown", err)
				}
				if err := other.(driver.Operator).SetLimit(t.Context(), "r", 0); err != nil {
					t.Fatal(err)
				}
				l.late()
				if st, err := d.Inspect(t.Context(), "r"); err != nil || st.Limit != 0 {
					t.Errorf("limit %d, %v", st.Limit, err)
				}
			})
		})
	}
}

// A write that was not sent is made upon what the name has now, and says nothing of the one before it.
func TestUnsentWriteIsMadeAnew(t *testing.T) {
	overLink(t, func(t *testing.T, l *link) {
		other := claimOf(t, process(t, l.Store), driver.Request{Owner: "before"})
		claimtest.Granted(t, other)
		claimtest.Released(t, other)
		c := claimOf(t, over(t, l), driver.Request{Owner: "a"})
		l.next = "hold up"
		if _, err := c.Try(t.Context()); !errors.Is(err, errCut) {
			t.Fatalf("Try: %v; want its outcome to be unknown", err)
		}
		l.next = "unsent"
		if err := c.Release(t.Context(), driver.End{}); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Fatalf("Release: %v", err)
		}
		l.late()
		claimtest.Granted(t, other)
		claimtest.Released(t, other)
		for what, call := range map[string]func() error{
			"Try":     func() error { _, err := c.Try(t.Context()); return err },
			"Renew":   func() error { _, err := c.Renew(t.Context(), ttl); return err },
			"Release": func() error { return c.Release(t.Context(), driver.End{}) },
		} {
			if what != "Try" {
				claimtest.Granted(t, c)
			}
			l.next = "unsent"
			if err := call(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// An unsendable is a store that nobody gives a write to.
type unsendable struct{ caslock.Store }

var errNobody = fmt.Errorf("nobody leads: %w", caslock.ErrUnsent)

func (unsendable) Write(context.Context, string, []byte, caslock.Version, time.Duration) (caslock.Version, error) {
	return "", errNobody
}

// A call that could send nothing says why, and not that others were in its way.
func TestWhyNothingIsSent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := claimOf(t, process(t, unsendable{&hashed{}}), driver.Request{Owner: "a"})
		if _, err := c.Try(t.Context()); !errors.Is(err, errNobody) {
			t.Errorf("Try: %v; want %v", err, errNobody)
		}
	})
}

// A twice is a store behind a proxy which sends each write twice, and passes the second answer on.
type twice struct{ caslock.Store }

func (s twice) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	_, _ = s.Store.Write(ctx, name, value, was, life)
	return s.Store.Write(ctx, name, value, was, life)
}

// A client or a proxy that sends a write twice is told no the second time, and has written. Of what was
// removed nothing is left by which to know whose removal it was.
func TestRepeatedWriteFindsItself(t *testing.T) {
	for name, store := range stores() {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := store()
				c := claimOf(t, process(t, twice{s}), driver.Request{Owner: "a"})
				g := claimtest.Granted(t, c)
				if again, err := c.Renew(t.Context(), ttl); err != nil || again.Fence != g.Fence {
					t.Errorf("Renew: %v, %v", again, err)
				}
				err := c.Release(t.Context(), driver.End{})
				if _, removes := s.(caslock.Counter); errors.Is(err, driver.ErrLost) || err != nil && !removes {
					t.Errorf("Release: %v", err)
				}
				claimtest.Granted(t, claimOf(t, process(t, s), driver.Request{Owner: "b"}))
			})
		})
	}
}

// What gave up a lease has done so although it is told no because it was sent twice, and although others have
// written since.
func TestRepeatedReleaseFindsItselfBelowOthers(t *testing.T) {
	calls := map[string]func(ctx context.Context, d driver.Driver, c driver.Claim) error{
		"Release": func(ctx context.Context, _ driver.Driver, c driver.Claim) error { return c.Release(ctx, driver.End{}) },
		"Linger": func(ctx context.Context, _ driver.Driver, c driver.Claim) error {
			return c.Release(ctx, driver.End{Linger: time.Millisecond})
		},
		"Evict": func(ctx context.Context, d driver.Driver, _ driver.Claim) error {
			return d.(driver.Operator).Evict(ctx, "r", "a", "because")
		},
	}
	for what, call := range calls {
		t.Run(what, func(t *testing.T) {
			overLink(t, func(t *testing.T, l *link) {
				d := over(t, l)
				c := claimOf(t, d, driver.Request{Owner: "a"})
				claimtest.Granted(t, c)
				next := claimOf(t, process(t, l.Store), driver.Request{Owner: "b", Queue: true})
				claimtest.Refused(t, next)
				claimtest.Refused(t, claimOf(t, process(t, l.Store), driver.Request{Owner: "c", Queue: true}))
				if _, err := d.(driver.Operator).Inspect(t.Context(), "r"); err != nil { // so that it writes on what they wrote
					t.Fatal(err)
				}
				l.between = func() {
					until(t, next, 10*time.Millisecond)
					claimtest.Released(t, next)
				}
				l.next = "repeat"
				if err := call(t.Context(), d, c); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			})
		})
	}
}

// Nor is it none if its first write was done just before the second. After a removal that is unknown.
func TestCallFindsItsFirstWrite(t *testing.T) {
	calls := map[string]func(ctx context.Context, d driver.Driver, c driver.Claim) error{
		"Renew": func(ctx context.Context, _ driver.Driver, c driver.Claim) error {
			_, err := c.Renew(ctx, ttl)
			return err
		},
		"Release": func(ctx context.Context, _ driver.Driver, c driver.Claim) error { return c.Release(ctx, driver.End{}) },
		"Evict": func(ctx context.Context, d driver.Driver, _ driver.Claim) error {
			return d.(driver.Operator).Evict(ctx, "r", "a", "because")
		},
	}
	for what, call := range calls {
		t.Run(what, func(t *testing.T) {
			overLink(t, func(t *testing.T, l *link) {
				d := over(t, l)
				c := claimOf(t, d, driver.Request{Owner: "a"})
				claimtest.Granted(t, c)
				l.next, l.sooner = "silent", true
				err := call(t.Context(), d, c)
				if _, removes := l.Store.(caslock.Counter); errors.Is(err, driver.ErrLost) || err != nil && !(removes && what == "Release") {
					t.Errorf("%s: %v", what, err)
				}
			})
		})
	}
}

// A release that comes too late is none: neither after an eviction nor after the store was emptied, and
// whatever others have written since.
func TestReleaseOfWhatWasTakenIsNone(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, s *counting){
		"evicted": func(t *testing.T, s *counting) {
			if err := process(t, s).(driver.Operator).Evict(t.Context(), "r", "a", "because"); err != nil {
				t.Fatal(err)
			}
		},
		"emptied": func(t *testing.T, s *counting) { s.empty() },
	} {
		for writes := range 3 {
			t.Run(name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					s := &counting{}
					c := claimOf(t, process(t, s), driver.Request{Owner: "a"})
					claimtest.Granted(t, c)
					take(t, s)
					for i := range writes {
						claimtest.Granted(t, claimOf(t, process(t, s), driver.Request{Owner: strconv.Itoa(i), Mode: driver.Shared}))
					}
					if err := c.Release(t.Context(), driver.End{}); err == nil || name == "evicted" && !errors.Is(err, driver.ErrLost) {
						t.Errorf("Release: %v", err)
					}
				})
			})
		}
	}
}

// Where a store has lost a record, one without claims is written first. Repeated, it is no grant.
func TestRepeatedBlankIsNoGrant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &link{Store: &counting{forgets: true}}
		c := claimOf(t, over(t, l), driver.Request{Owner: "a"})
		before := claimtest.Granted(t, c)
		claimtest.Released(t, c)
		l.next = "repeat"
		if g := claimtest.Granted(t, c); g.Fence <= before.Fence {
			t.Errorf("fence %d after %d", g.Fence, before.Fence)
		}
		claimtest.Released(t, c)
	})
}

// A release whose answer is lost was one, if it is found when it is repeated.
func TestReleaseFindsItsOwnWrite(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &link{Store: &hashed{}}
		c := claimOf(t, over(t, l), driver.Request{Owner: "a"})
		claimtest.Granted(t, c)
		l.next = "lose answer"
		if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, errCut) {
			t.Fatalf("Release: %v; want its outcome to be unknown", err)
		}
		claimtest.Released(t, c)
		if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release of nothing: %v; want ErrLost", err)
		}
	})
}

// A grant whose answer is lost is found by the next Try, with its fence.
func TestGrantWithoutAnswerIsFound(t *testing.T) {
	overLink(t, func(t *testing.T, l *link) {
		c := claimOf(t, over(t, l), driver.Request{Owner: "a"})
		l.next = "lose answer"
		if _, err := c.Try(t.Context()); !errors.Is(err, errCut) {
			t.Fatalf("Try: %v", err)
		}
		busy := claimtest.Refused(t, claimOf(t, process(t, l.Store), driver.Request{Owner: "b"}))
		if g := claimtest.Granted(t, c); g.Fence != busy.Holder.Fence || g.Fence == 0 {
			t.Errorf("fence %d, shown to others as %d", g.Fence, busy.Holder.Fence)
		}
	})
}
