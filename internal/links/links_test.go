package links

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// pair returns a connection of l and its server's end.
func pair(t *testing.T, l *Links) (client, server net.Conn) {
	client, server = net.Pipe()
	client = l.Add(client)
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func isOpen(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	ne, timeout := errors.AsType[net.Error](err)
	return timeout && ne.Timeout()
}

// A call without an answer closes the connections that were open when it began and have been silent
// since. It does not close those that deliver something, or newer ones.
func TestSilenceCondemnsWhatWasOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Links
		used, _ := pair(t, &l)
		idle, _ := pair(t, &l)
		talks, peer := pair(t, &l)
		time.Sleep(time.Minute)
		ctx, call := l.Begin(t.Context())
		start := time.Now()
		time.Sleep(first / 2)
		made, _ := pair(t, &l)
		go func() { peer.Write([]byte{1}) }()
		talks.Read(make([]byte, 1))
		<-ctx.Done()
		if took := time.Since(start); took != first {
			t.Errorf("ended after %v, want %v", took, first)
		}
		if err := call.End(context.Cause(ctx)); !errors.Is(err, ErrSilent) {
			t.Errorf("the call came to %v", err)
		}
		if isOpen(used) || isOpen(idle) || !isOpen(talks) || !isOpen(made) {
			t.Errorf("open: used %v, idle %v, talks %v, made since %v", isOpen(used), isOpen(idle), isOpen(talks), isOpen(made))
		}
	})
}

// A connection that delivers bytes may take as long as its caller allows.
func TestSignsOfLifeAreHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Links
		client, server := pair(t, &l)
		_, call := l.Begin(t.Context())
		go func() {
			for {
				time.Sleep(first / 2)
				if _, err := server.Write([]byte{1}); err != nil {
					return
				}
			}
		}()
		for range 20 {
			if _, err := client.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if err := call.End(nil); err != nil {
			t.Fatal(err)
		}
		client.Close()
		synctest.Wait()
		time.Sleep(first)
	})
}

// A later attempt waits long enough for a slow server, and a quick answer makes calls impatient
// again.
func TestPatienceGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Links
		for _, want := range []time.Duration{first, 2 * first, 4 * first, 4 * first} {
			pair(t, &l)
			start := time.Now()
			ctx, call := l.Begin(t.Context())
			<-ctx.Done()
			if took := time.Since(start); took != want {
				t.Errorf("ended after %v, want %v", took, want)
			}
			call.End(ctx.Err())
		}
		_, call := l.Begin(t.Context())
		time.Sleep(first / 2)
		call.End(nil)
		pair(t, &l)
		start := time.Now()
		ctx, call := l.Begin(t.Context())
		defer call.End(nil)
		if <-ctx.Done(); time.Since(start) != first {
			t.Errorf("after a quick answer, ended after %v", time.Since(start))
		}
	})
}

// A call with a bound leaves half of its time to another attempt.
func TestBoundedCallsLeaveTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Links
		pair(t, &l)
		bounded, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		start := time.Now()
		ctx, call := l.Begin(bounded)
		if <-ctx.Done(); time.Since(start) > 1000*time.Millisecond || bounded.Err() != nil {
			t.Errorf("ended after %v", time.Since(start))
		}
		call.End(ctx.Err())
	})
}

// A call that its caller abandons condemns nothing. A call without connections waits for its
// caller.
func TestCallersEndsCondemnNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Links
		client, _ := pair(t, &l)
		_, call := l.Begin(t.Context())
		time.Sleep(first / 2)
		if err := call.End(context.Canceled); errors.Is(err, ErrSilent) {
			t.Error(err)
		}
		time.Sleep(10 * first)
		if !isOpen(client) {
			t.Error("closed")
		}
		client.Close()
		bounded, cancel := context.WithTimeout(t.Context(), 5*first)
		defer cancel()
		ctx, call := l.Begin(bounded)
		if <-ctx.Done(); bounded.Err() == nil {
			t.Error("ended early")
		}
		if err := call.End(ctx.Err()); errors.Is(err, ErrSilent) {
			t.Error(err)
		}
	})
}

// Other calls on the connections that a call has condemned end as well.
func TestOthersOnTheSameConnectionEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Links
		pair(t, &l)
		one, call1 := l.Begin(t.Context())
		time.Sleep(first / 2)
		two, call2 := l.Begin(t.Context())
		<-one.Done()
		<-two.Done()
		err1, err2 := call1.End(one.Err()), call2.End(two.Err())
		if !errors.Is(err1, ErrSilent) || !errors.Is(err2, ErrSilent) {
			t.Errorf("the calls came to %v and %v", err1, err2)
		}
	})
}

func TestHungCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Links
		client, _ := pair(t, &l)
		time.Sleep(time.Second)
		began := time.Now()
		time.Sleep(first / 2)
		if l.Hung(began); !isOpen(client) {
			t.Error("closed early")
		}
		time.Sleep(first)
		if l.Hung(began); isOpen(client) {
			t.Error("open")
		}
		var none *Links
		none.Hung(began)
		none.Answered(began)
		ctx, call := none.Begin(t.Context())
		if ctx != t.Context() || call.End(nil) != nil {
			t.Error("a client of others is watched")
		}
	})
}
