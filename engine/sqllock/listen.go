package sqllock

import (
	"context"
	"strconv"
	"strings"
	"time"
)

// listenState is a watcher's Listener and its state.
type listenState struct {
	listener  Listener // nil: there is none
	channel   string
	listening bool    // guarded by watcher.mu; the goroutine runs
	relisten  func()  // guarded by watcher.mu; restarts the Listener
	hearing   hearing // guarded by watcher.mu
}

// wakeChannel returns the channel on which drivers notify each other's waiters.
func wakeChannel(prefix string) string { return strings.ToLower(prefix) + "wake" }

// listen receives messages until close. Between two attempts the watcher polls.
func (w *watcher) listen() {
	for wait := listenFirst; w.life.Err() == nil; wait = min(2*wait, listenLast) {
		ctx, stop := context.WithCancel(w.life)
		w.mu.Lock()
		w.relisten = stop
		w.mu.Unlock()
		_ = w.listener.Listen(ctx, w.channel, func(message string) { // the error does not matter
			wait = listenFirst
			w.hear(message)
		})
		stop()
		w.mu.Lock()
		w.hearing.ended()
		w.mu.Unlock()
		signal(w.nudge)
		_ = rest(w.life, wait)
	}
}

// startListening begins to receive messages, unless that has begun. Requires mu.
func (w *watcher) startListening() {
	w.listening = w.listening || w.listener != nil && w.life.Go(w.listen)
}

// hear handles a message: it wakes the waiter that it names, or recalls holders. "" means that messages may have
// been missed.
func (w *watcher) hear(message string) {
	w.mu.Lock()
	w.hearing.on = true
	proof := w.hearing.heard(message)
	w.mu.Unlock()
	given, isGiven := strings.CutPrefix(message, givenMessage)
	placed, isPlaced := strings.CutPrefix(message, wantedMessage)
	switch {
	case proof:
	case message == lookMessage:
		signal(w.nudge)
	case message == "":
		signal(w.nudge)
		w.lookForMissed()
	case isGiven:
		w.given(given)
	case isPlaced:
		w.wanted(placed)
	default:
		w.wakeAll(func(one *waiter) bool { return called(one.req.Owner) == message })
	}
}

// given delivers a grant to the waiter that the message names, if it is one of ours.
func (w *watcher) given(message string) {
	to, rest, _ := strings.Cut(message, " ")
	text, rest, _ := strings.Cut(rest, " ")
	of, others, _ := strings.Cut(rest, " ")
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return
	}
	beat, _ := strconv.ParseInt(of, 10, 64)
	defer w.tell()
	w.mu.Lock()
	defer w.mu.Unlock()
	if me := w.byHash[to]; me != nil {
		b := brought{number: number, wanted: others == othersWait}
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

// prove sends the Listener a test message now and then. If it no longer receives them, it may be
// connected to a former primary, and reconnects.
func (w *watcher) prove(ctx context.Context) {
	w.mu.Lock()
	heard := w.hearing.hears
	token := w.hearing.next(time.Now())
	if heard && !w.hearing.hears {
		w.relisten()
	}
	w.mu.Unlock()
	if token != "" {
		_ = w.d.exec(ctx, w.d.texts.wake, list(token)) // if it fails, no message comes back and the watcher polls
	}
}
