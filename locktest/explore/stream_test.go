package explore

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestStreams sends on two streams of a connection: one passes the other, and both are lost with the whole.
func TestStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := &plan{changes: []change{{"p1 a 1", "hold 1"}, {"p1 d 1", "lose"}}}
		w := newWorld(&Harness{TTL: time.Second}, held)
		p := &Process{world: w, name: "p1"}
		cut := false
		whole := p.Line(func() { cut = true })
		one, other := whole.Stream(nil), whole.Stream(nil)
		var served, answered []string
		send := func(l *Line, what string) {
			l.Send(what, "", func() any { served = append(served, what); return what }, func(a any) { answered = append(answered, a.(string)) })
		}
		send(one, "a")
		send(one, "b")
		send(other, "c")
		w.run(func() bool { return len(served) == 1 })
		if !slices.Equal(served, []string{"c"}) {
			t.Errorf("served %q first, want c, which is on another stream", served)
		}
		w.run(func() bool { return len(answered) == 3 })
		if !slices.Equal(answered, []string{"c", "a", "b"}) {
			t.Errorf("answered %q, want b after a", answered)
		}
		send(one, "d")
		send(other, "e")
		w.run(func() bool { return len(served) == 4 && len(w.pending) == 0 })
		if !cut || len(answered) != 3 {
			t.Errorf("answered %q, cut: %v; want nothing to come back over what was cut", answered, cut)
		}
	})
}

// What the engine says unasked is lost alone, but with the connection where the protocol keeps that whole.
func TestLostPush(t *testing.T) {
	for _, once := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(&Harness{TTL: time.Second}, &plan{changes: []change{{"p1 a 1", "lose"}}})
			p := &Process{world: w, name: "p1"}
			cut := false
			l := p.Line(func() { cut = true })
			if once {
				l.Once()
			}
			var came []string
			for _, what := range []string{"a", "b"} {
				l.Push(what, func() { came = append(came, what) })
			}
			w.run(func() bool { return len(w.pending) == 0 })
			if want := map[bool]int{false: 1, true: 0}[once]; cut != once || len(came) != want {
				t.Errorf("Once %v: %q came, cut: %v; want %d to come", once, came, cut, want)
			}
		})
	}
}
