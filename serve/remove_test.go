package serve_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// waiterOf waits until somebody waits for a name, and returns the waiter's handle.
func (s *service) waiterOf(name string) (handle string) {
	s.t.Helper()
	eventually(s.t, "somebody waits for "+name, func() bool {
		if waiters := s.state(name).Waiters; len(waiters) > 0 {
			handle = waiters[len(waiters)-1].Handle
		}
		return handle != ""
	})
	return handle
}

// A waiter that is removed gets the reason, and is not granted the lease later. The holder is not
// affected.
func TestRemove(t *testing.T) {
	t.Parallel()
	d := &asked{Driver: memory.NewServer().Connect()}
	s := startOn(t, d, often)
	s.post(wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`).want(t, 200, "")
	for _, owner := range []string{"", "waiter"} {
		answered := make(chan answer, 1)
		go func() {
			a, _ := post(s.url+wire.Acquire, `{"name":"n","owner":"`+owner+`","ttl_ms":60000,"wait_ms":30000}`)
			answered <- a
		}()
		handle := s.waiterOf("n")
		if w := s.state("n").Waiters[0]; !w.Here {
			t.Errorf("it is not said to wait here: %+v", w)
		}
		s.post(wire.Remove, `{"name":"n","handle":%q,"reason":"wrong branch"}`, handle).want(t, 200, "")
		if a := <-answered; a.status != 410 || a.Code != wire.CodeEvicted || !strings.Contains(a.Error, "removed from the queue: wrong branch") {
			t.Errorf("the waiter was answered %d %s", a.status, a.text)
		}
		s.post(wire.Remove, `{"name":"n","handle":%q,"reason":"again"}`, handle)
		if owner != "" { // another call of a removed owner
			s.post(wire.Acquire, `{"name":"n","owner":"waiter","ttl_ms":60000,"wait_ms":30000}`).want(t, 410, "evicted")
			s.looked(d)
			s.post(wire.Release, `{"name":"n","owner":"waiter"}`) // its place may be over
		}
		eventually(t, "it has left the queue", func() bool { return len(s.state("n").Waiters) == 0 })
		s.looked(d)
	}
	all := s.history("name=n&kind=left")
	if len(all.Entries) != 1 || all.Entries[0].Reason != "wrong branch" || all.Entries[0].By == "" {
		// one of them left by itself
		reasons := 0
		for _, e := range all.Entries {
			if e.Reason == "wrong branch" && e.By != "" {
				reasons++
			}
		}
		if len(all.Entries) != 2 || reasons != 2 {
			t.Errorf("%+v", all.Entries)
		}
	}
	s.post(wire.Renew, `{"name":"n","owner":"holder","ttl_ms":60000}`).want(t, 200, "")
	s.post(wire.Remove, `{"name":"n","owner":"holder","reason":"r"}`).want(t, 409, "busy")
	s.post(wire.Renew, `{"name":"n","owner":"holder","ttl_ms":60000}`).want(t, 200, "")
	s.post(wire.Remove, `{"name":"n","owner":"nobody","reason":"r"}`).want(t, 410, "lost")
	for _, body := range []string{`{"name":"n","reason":"r"}`, `{"name":"n","owner":"a","handle":"b","reason":"r"}`, `{"name":"n","owner":"a","reason":" "}`} {
		s.post(wire.Remove, "%s", body).want(t, 400, "invalid")
	}
}

// A waiter at another instance, or at none, is not removed here, and continues to wait.
func TestRemoveLeavesThoseWhoWaitElsewhere(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	s, other := start(t, engine, nil), start(t, engine, nil)
	s.post(wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`).want(t, 200, "")
	answered := make(chan answer, 1)
	go func() {
		a, _ := post(other.url+wire.Acquire, `{"name":"n","owner":"waiter","ttl_ms":60000,"wait_ms":30000}`)
		answered <- a
	}()
	handle := s.waiterOf("n")
	if w := s.state("n").Waiters[0]; w.Here {
		t.Errorf("it is said to wait here: %+v", w)
	}
	s.post(wire.Remove, `{"name":"n","handle":%q,"reason":"r"}`, handle).want(t, 501, "unsupported")
	s.post(wire.Release, `{"name":"n","owner":"holder"}`).want(t, 200, "")
	if a := <-answered; a.status != 200 {
		t.Errorf("the waiter was answered %d %s", a.status, a.text)
	}
}

// A program that waits through the service gets an error that says that it was removed, and leaves
// the queue.
func TestRemovedProgramsAreTold(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	s := start(t, engine, nil)
	s.post(wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`).want(t, 200, "")
	d, err := httplock.OpenURL(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	locks, err := leasehold.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	failed := make(chan error, 1)
	go func() {
		lease, err := locks.Acquire(t.Context(), "n")
		if err == nil {
			lease.Release(t.Context())
		}
		failed <- err
	}()
	s.post(wire.Remove, `{"name":"n","handle":%q,"reason":"wrong branch"}`, s.waiterOf("n")).want(t, 200, "")
	err = <-failed
	if !errors.Is(err, leasehold.ErrLost) || !strings.Contains(err.Error(), "removed from the queue: wrong branch") {
		t.Errorf("Acquire: %v", err)
	}
	eventually(t, "it has left the queue", func() bool { return len(s.state("n").Waiters) == 0 })
	s.post(wire.Release, `{"name":"n","owner":"holder"}`).want(t, 200, "")
	lease, err := locks.Acquire(t.Context(), "n") // another claim
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// If a removal and a grant coincide, one of them wins: a waiter that is granted the lease keeps it.
func TestRemovalNeverEndsAGrant(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	granted, gone := 0, 0
	for i := range 200 {
		s.post(wire.Acquire, `{"name":"n","owner":"holder%d","ttl_ms":60000}`, i).want(t, 200, "")
		waiter := "waiter" + string(rune('a'+i%26)) + strings.Repeat("x", i/26)
		answered := make(chan answer, 1)
		go func() {
			a, _ := post(s.url+wire.Acquire, `{"name":"n","owner":"`+waiter+`","ttl_ms":60000,"wait_ms":30000}`)
			answered <- a
		}()
		s.waiterOf("n")
		released := make(chan answer, 1)
		go func() {
			a, _ := post(s.url+wire.Release, `{"name":"n","owner":"holder`+strconv.Itoa(i)+`"}`)
			released <- a
		}()
		removed := s.post(wire.Remove, `{"name":"n","owner":%q,"reason":"r"}`, waiter)
		a := <-answered
		(<-released).want(t, 200, "")
		switch {
		case a.status == 200 && removed.status == 409:
			granted++
			s.post(wire.Renew, `{"name":"n","owner":%q,"ttl_ms":60000}`, waiter).want(t, 200, "")
		case a.status == 410 && removed.status == 200:
			gone++
		default:
			t.Fatalf("the waiter was answered %s, the removal %s", a.text, removed.text)
		}
		s.post(wire.Release, `{"name":"n","owner":%q}`, waiter)
	}
	t.Logf("%d granted, %d removed", granted, gone)
}

// If a waiter's last attempt before its removal had no answer and was granted, its next call finds
// the lease.
func TestRemovedWaiterFindsTheLeaseOfAnUnansweredAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		d := locktest.NewFaulty(engine.Connect())
		s, other := newBubble(t, d, nil), newBubble(t, engine.Connect(), nil)
		const waits = `{"name":"n","owner":"o","ttl_ms":60000,"wait_ms":30000}`
		other.want(200, wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`)
		waited := make(chan struct{})
		go func() {
			defer close(waited)
			s.wantCode(wire.CodeUnknown, wire.Acquire, waits)
		}()
		synctest.Wait()
		d.Next(locktest.OpTry, locktest.LoseReply)
		other.want(200, wire.Release, `{"name":"n","owner":"holder"}`)
		synctest.Wait() // it rests after the attempt that was applied
		s.wantCode(wire.CodeUnknown, wire.Remove, `{"name":"n","owner":"o","reason":"r"}`)
		<-waited
		d.Next(locktest.OpRenew, locktest.LoseRequest)
		s.wantCode(wire.CodeUnknown, wire.Acquire, waits) // no answer yet
		s.want(200, wire.Acquire, waits)
		s.want(200, wire.Release, `{"name":"n","owner":"o"}`)
	})
}

// A waiter that was refused until its removal is not granted the lease later, even if the engine
// gives the lease to its place, which no other Try keeps.
func TestRemovedWaiterIsNotGrantedWhatItsPlaceGets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		s, other := newBubble(t, engine.Connect(), nil), newBubble(t, engine.Connect(), nil)
		const waits = `{"name":"n","owner":"o","ttl_ms":60000,"wait_ms":30000,"caller":"c","call":%d}`
		other.want(200, wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`)
		waited := make(chan struct{})
		go func() {
			defer close(waited)
			s.wantCode(wire.CodeEvicted, wire.Acquire, waits, 1)
		}()
		synctest.Wait()
		s.want(200, wire.Remove, `{"name":"n","owner":"o","reason":"r"}`)
		<-waited
		other.want(200, wire.Release, `{"name":"n","owner":"holder"}`)
		grantToPlace(t, engine)
		s.wantCode(wire.CodeEvicted, wire.Acquire, waits, 2)
		time.Sleep(20 * time.Second) // by then the instance has forgotten the claim
		s.wantCode(wire.CodeEvicted, wire.Acquire, waits, 3)
	})
}

// A removed waiter finds the lease that another instance has granted it since, by a call that this
// instance cannot know to be over.
func TestRemovedWaiterFindsTheLeaseOfAnotherInstance(t *testing.T) {
	t.Parallel()
	for what, first := range map[string]bool{"its second call is there": false, "its first call is there": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := memory.NewServer()
				here, there := newBubble(t, engine.Connect(), nil), newBubble(t, engine.Connect(), nil)
				call := 0
				waits := func() string {
					call++
					return fmt.Sprintf(`{"name":"n","owner":"o","ttl_ms":60000,"wait_ms":30000,"caller":"c","call":%d}`, call)
				}
				there.want(200, wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`)
				var calls sync.WaitGroup
				waitsHere := func() {
					body := waits()
					calls.Go(func() { here.wantCode(wire.CodeEvicted, wire.Acquire, "%s", body) })
					synctest.Wait()
				}
				if !first {
					waitsHere()
				}
				body := waits()
				calls.Go(func() { there.want(200, wire.Acquire, "%s", body) })
				synctest.Wait()
				if first {
					waitsHere()
				}
				here.want(200, wire.Remove, `{"name":"n","owner":"o","reason":"r"}`)
				there.want(200, wire.Release, `{"name":"n","owner":"holder"}`)
				calls.Wait()
				here.want(200, wire.Acquire, "%s", waits())
			})
		})
	}
}

// If the engine has granted the lease to a waiter's place before the removal, the waiter keeps the
// lease, even if the message has not come yet.
func TestRemovalComesAfterTheGrantToItsPlace(t *testing.T) {
	t.Parallel()
	for what, wait := range map[string]string{"a call that waits": `"wait_ms":30000`, "a call that polls": `"queue":true`} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := memory.NewServer()
				d := locktest.NewFaulty(engine.Connect())
				d.LoseWakes()
				s, other := newBubble(t, d, nil), newBubble(t, engine.Connect(), nil)
				other.want(200, wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`)
				goes := make(chan struct{})
				d.Next(locktest.OpTry, func(_ context.Context, apply func() error) error {
					err := apply()
					<-goes
					return err
				})
				waited := make(chan struct{})
				go func() {
					defer close(waited)
					s.want(200, wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"caller":"c","call":1,%s}`, wait)
				}()
				synctest.Wait()
				other.want(200, wire.Release, `{"name":"n","owner":"holder"}`)
				grantToPlace(t, engine)
				removed := make(chan struct{})
				go func() {
					defer close(removed)
					s.want(409, wire.Remove, `{"name":"n","owner":"o","reason":"r"}`)
				}()
				synctest.Wait()
				close(goes)
				<-waited
				<-removed
				s.want(200, wire.Release, `{"name":"n","owner":"o","caller":"c","call":2}`)
			})
		})
	}
}

// If the look that follows the removal has no answer, the waiter may have the lease. Both calls are
// answered so, and both are answered truly when they are repeated.
func TestRemovalWithoutAnAnswerIsUnknown(t *testing.T) {
	t.Parallel()
	for what, holds := range map[string]bool{"the waiter has got the lease": true, "the waiter has a place": false} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := memory.NewServer()
				d := locktest.NewFaulty(engine.Connect())
				d.LoseWakes()
				s, other := newBubble(t, d, nil), newBubble(t, engine.Connect(), nil)
				const waits = `{"name":"n","owner":"o","ttl_ms":60000,"wait_ms":30000,"caller":"c","call":%d}`
				const remove = `{"name":"n","owner":"o","reason":"r"}`
				other.want(200, wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`)
				waited := make(chan struct{})
				go func() {
					defer close(waited)
					s.wantCode(wire.CodeUnknown, wire.Acquire, waits, 1)
				}()
				synctest.Wait()
				if holds {
					other.want(200, wire.Release, `{"name":"n","owner":"holder"}`)
					grantToPlace(t, engine)
				}
				d.Next(locktest.OpRenew, locktest.LoseReply)
				s.wantCode(wire.CodeUnknown, wire.Remove, remove)
				<-waited
				if holds {
					s.want(200, wire.Acquire, waits, 2)
					s.wantCode(wire.CodeBusy, wire.Remove, remove)
				} else {
					s.wantCode(wire.CodeEvicted, wire.Acquire, waits, 2)
					s.want(200, wire.Remove, remove)
					left := s.history("kind=left").Entries
					if len(left) != 1 || left[0].Reason != "r" || left[0].By == "" {
						t.Errorf("the history has left as %+v, want once, with reason and author", left)
					}
				}
			})
		})
	}
}

// grantToPlace grants n to the place of o, as some engines do. The memory engine grants to nobody by
// itself.
func grantToPlace(t *testing.T, engine *memory.Server) {
	t.Helper()
	c, err := engine.Connect().Claim(driver.Request{Resource: "n", Owner: "o", TTL: time.Minute, Queue: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Try(t.Context()); err != nil {
		t.Fatal(err)
	}
}
