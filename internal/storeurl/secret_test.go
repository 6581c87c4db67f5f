package storeurl

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A server that refuses is asked four times a second, by all callers together, until it accepts.
func TestLoginsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l Logins
		no := errors.New("no")
		asked := 0
		call := func(answer error) error {
			if err := l.Begin(); err != nil {
				return err
			}
			asked++
			l.Ended(answer, answer != nil)
			return answer
		}
		for range 100 { // a server that accepts delays nobody
			if call(nil) != nil {
				t.Fatal("held up")
			}
		}
		asked = 0
		for range 10_000 {
			if err := call(no); err != no {
				t.Fatalf("%v; want the refusal", err)
			}
			time.Sleep(time.Millisecond)
		}
		if asked != 40 {
			t.Errorf("asked %d times in 10 s", asked)
		}
		time.Sleep(loginPause)
		if err := call(nil); err != nil {
			t.Errorf("%v, although it lets in", err)
		}
		for range 2 {
			if err := l.Begin(); err != nil {
				t.Errorf("held up after a yes: %v", err)
			}
		}
	})
}

// While one caller asks again, the others get the last refusal.
func TestOneLoginAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l Logins
		no := errors.New("no")
		l.Ended(no, true)
		time.Sleep(loginPause)
		if l.Begin() != nil || l.Begin() != no {
			t.Error("two at once")
		}
		l.Ended(context.DeadlineExceeded, false) // its outcome is lost
		if l.Begin() != no {
			t.Error("a call that was given up counts for a yes")
		}
		time.Sleep(loginPause)
		if l.Begin() != nil {
			t.Error("nobody asks any more")
		}
	})
}
