package zklock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// grantedOn is a claim of session 77 that was granted just now, and asks for recalls. told counts them.
func grantedOn(t *testing.T, s *session, owner string, told *int, behind ...node) *claim {
	t.Helper()
	c := newClaim(s, driver.Request{Resource: "a", Owner: owner, TTL: s.ttl, Wanted: func() { *told++ }})
	c.node = &own{name: nodeOf(c), session: 77, alarm: &alarm{}}
	asked := boottime.Now()
	if _, err := c.granted(asked, asked.Add(s.timeout), append([]node{{name: nodeOf(c), guid: c.guid, seq: 2}}, behind...), 0); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return c
}

// Nothing is listed, and nothing kept, for a holder that knows at its grant that others wait and gives way at once, by
// whichever end of its lease. The next one does not wait for the list that was due.
func TestNothingIsListedForThoseWhoAreGone(t *testing.T) {
	for what, end := range map[string]func(*claim){
		"released": (*claim).giveUp,
		"lost":     func(c *claim) { c.lose(errExpired)() },
		"over":     func(c *claim) { _ = c.holds(boottime.Now().Add(c.req.TTL)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			s, told := testSession(t, 9*time.Second), 0
			s.greeted(s.timeout, 77, boottime.Now(), false)
			s.conn.become(closed, driver.ErrClosed) // each look ends at once
			c := grantedOn(t, s, "one", &told, node{name: "behind", guid: guidOf("two"), seq: 3})
			if l := s.recalls.of[c.parent]; told != 1 || !l.looking {
				t.Errorf("%s: told %d times, want 1; a list is due: %v", what, told, l.looking)
			}
			end(c)
			if len(s.recalls.of) > 0 {
				t.Errorf("%s: %d lookouts, want none", what, len(s.recalls.of))
			}
			next := grantedOn(t, s, "two", &told)
			if s.recalls.of[c.parent].looking {
				t.Errorf("%s: the next holder's list has to wait", what)
			}
			next.forget()
			c.forget()
		})
	}
}
