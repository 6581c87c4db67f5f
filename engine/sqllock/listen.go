package sqllock

import (
	"context"
	"strconv"
	"strings"
	"time"
)

// An listenState is a watcher's Listener and what it does.
type listenState struct {
	listener  Listener // nil: there is none
	channel   string
	listening bool    // guarded by watcher.mu; there is a goroutine that listens
	relisten  func()  // guarded by watcher.mu; ends the present call of the Listener, which is made again
	hearing   hearing // guarded by watcher.mu
}

// wakeChannel is where drivers tell each other whose turn it is.
func wakeChannel(prefix string) string { return strings.ToLower(prefix) + "wake" }

// listen hears messages until close. Between two attempts the watcher polls.
func (w *watcher) listen() {
	for wait := listenFirst; w.ctx.Err() == nil; wait = min(2*wait, listenLast) {
		ctx, stop := context.WithCancel(w.ctx)
		w.mu.Lock()
		w.relisten = stop
		w.mu.Unlock()
		_ = w.listener.Listen(ctx, w.channel, func(message string) { // what ends it does not matter
			wait = listenFirst
			w.hear(message)
		})
		stop()
		w.mu.Lock()
		w.hearing.ended()
		w.mu.Unlock()
		signal(w.nudge)
		_ = rest(w.ctx, wait)
	}
}

// hear wakes the one that message names; "" means that there may have been others.
func (w *watcher) hear(message string) {
	w.mu.Lock()
	w.hearing.on = true
	proof := w.hearing.heard(message)
	w.mu.Unlock()
	switch {
	case proof:
		return
	case message == "":
		signal(w.nudge)
		return
	}
	if given, ok := strings.CutPrefix(message, givenMessage); ok {
		w.given(given)
		return
	}
	w.wakeAll(func(one *waiter) bool { return called(one.req.Owner) == message })
}

// given brings a grant to the waiter that the message names, if it is one of ours.
func (w *watcher) given(message string) {
	to, rest, _ := strings.Cut(message, " ")
	text, of, _ := strings.Cut(rest, " ")
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return
	}
	beat, _ := strconv.ParseInt(of, 10, 64)
	w.mu.Lock()
	defer w.mu.Unlock()
	if me := w.byHash[to]; me != nil {
		b := brought{number: number}
		if sent := w.sent[beat]; sent != 0 {
			b.ends = sent.Add(min(placeTTL, me.req.TTL))
		}
		w.give(me, b)
	}
}

func (w *watcher) hearsAll() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hearing.hears
}

// prove tells the Listener something, now and then. One that hears no longer what it heard before may be connected to a
// server that was the primary then: it connects again.
func (w *watcher) prove(ctx context.Context) {
	w.mu.Lock()
	heard := w.hearing.hears
	token := w.hearing.next(time.Now())
	if heard && !w.hearing.hears {
		w.relisten()
	}
	w.mu.Unlock()
	if token != "" {
		_ = w.d.exec(ctx, w.d.texts.wake, list(token)) // untold is unheard: it polls
	}
}
