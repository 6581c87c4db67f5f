package explore

import (
	"context"
	"errors"
)

// ErrCut is the error of a call whose link broke. Whether the engine has served it, it does not
// tell.
var ErrCut = errors.New("explore: link broke")

// A Process is one of those that use the engine. It has a driver and a Locker of its own.
type Process struct {
	world *World
	name  string
	dead  bool    // guarded by World.mu
	lines []*Line // guarded by World.mu; not closed by anybody
	ended ended   // guarded by World.mu
}

// ended is what has come of the calls of a process.
type ended struct {
	unanswered int  // how many have ended without an answer
	heard      bool // the last that has ended had one
}

// Name is short and the same in every schedule.
func (p *Process) Name() string { return p.name }

// A Line is a connection of a process. Its requests stay in their order, and so does what comes
// back.
type Line struct {
	process *Process
	whole   *Line  // what it is a stream of; nil: it is none
	down    bool   // guarded by World.mu; nothing comes back any more
	lost    bool   // guarded by World.mu; nor does anything get to the engine
	once    bool   // no request is served twice
	broken  func() // tells the process
}

// Line opens a connection; broken is called when the network has cut it, from a goroutine of
// its own. That of a dead process is cut at once.
func (p *Process) Line(broken func()) *Line {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	l := &Line{process: p, broken: broken, down: p.dead}
	if p.dead {
		go broken()
	} else {
		p.lines = append(p.lines, l)
	}
	return l
}

// Once says that no request on the line is served twice, as nobody sends one again: not the
// client, nor a proxy, for its protocol counts the requests of a connection. Nor is what the engine says
// unasked lost while the line goes on.
func (l *Line) Once() { l.once = true }

// Stream is a part of the connection, as HTTP/2 and gRPC have them: what is sent on it keeps its own
// order alone, and may pass what is sent beside it. It is lost with the whole, and is not closed. Where what
// the engine says unasked is lost, it is with the stream alone: ended is called, from a goroutine of its own; nil:
// nobody notices.
func (l *Line) Stream(ended func()) *Line {
	return &Line{process: l.process, whole: l.connection(), broken: ended}
}

func (l *Line) connection() *Line {
	if l.whole != nil {
		return l.whole
	}
	return l
}

// Passes reports whether anything comes back over the connection. It is for what an engine's end says by
// itself, which is no event: that must not come back either.
func (l *Line) Passes() bool {
	l.process.world.mu.Lock()
	defer l.process.world.mu.Unlock()
	return !l.connection().down
}

// Close ends the connection from the side of the process. What it has sent may still arrive.
func (l *Line) Close() {
	l.process.world.mu.Lock()
	defer l.process.world.mu.Unlock()
	l.close()
}

func (l *Line) close() {
	l.down = true
	for i, o := range l.process.lines {
		if o == l {
			last := len(l.process.lines) - 1
			l.process.lines[i] = l.process.lines[last]
			l.process.lines = l.process.lines[:last]
			return
		}
	}
}

// cut ends it for both sides. Requires World.mu.
func (l *Line) cut() {
	if !l.down {
		l.close()
		go l.broken()
	}
}

// Send sends a request. What it is, and what of the engine it touches, are the same whenever the
// schedule is run; requests that touch different things do not depend on each other, and ""
// touches everything. Serve has the engine serve it, now or later, once or twice, also after
// the line was closed; it is called in a goroutine of its own. Arrive is called with its first
// answer, if that gets back.
func (l *Line) Send(what, touches string, serve func() (answer any), arrive func(answer any)) {
	l.send(&event{touches: touches}, what, serve, arrive)
}

// send sends e, unless nobody is there any more to do so.
func (l *Line) send(e *event, what string, serve func() any, arrive func(any)) {
	w := l.process.world
	w.mu.Lock()
	dead := l.process.dead
	w.mu.Unlock()
	if dead {
		return
	}
	e.kind, e.process, e.line, e.label = request, l.process, l, l.process.name+" "+what
	e.happen = func() { w.serve(e, serve, arrive) }
	e.repeat = func() { w.serve(e, serve, nil) }
	w.post(e)
}

// Beat is a message that keeps a line or a session alive. It goes the way of Send, but nothing is
// chosen for it: it is late, or lost, with its line and its process alone.
func (l *Line) Beat(what string, serve func() (answer any), arrive func(answer any)) {
	l.send(&event{touches: what, beat: true, timing: timing{decided: true}}, what, serve, arrive)
}

// Dial is what a process sends first over a line, and waits for before it sends anything else. It goes the way of Send. Where it is
// late, calls may end before they have left, such as a release: something may be left behind, as
// where a message was lost.
func (l *Line) Dial(what string, serve func() (answer any), arrive func(answer any)) {
	l.send(&event{dials: true}, what, serve, arrive)
}

// Push passes on what the engine says unasked. It is lost when the line is down.
func (l *Line) Push(what string, arrive func()) {
	w := l.process.world
	w.post(&event{kind: push, process: l.process, label: l.process.name + " " + what, line: l, happen: arrive})
}

// Call is a request on a line of its own: serve is what Send says. It returns the answer, or [ErrCut], or
// the cause when ctx ends before; then the request may still be served.
func (p *Process) Call(ctx context.Context, what, touches string, serve func() any) (any, error) {
	answers, cut := make(chan any, 1), make(chan struct{})
	l := p.Line(func() { close(cut) })
	defer l.Close()
	l.Send(what, touches, serve, func(a any) { answers <- a })
	heard := false
	defer func() { p.called(heard) }()
	select {
	case a := <-answers:
		heard = true
		return a, nil
	case <-cut:
		return nil, ErrCut
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// called notes that a call has ended.
func (p *Process) called(heard bool) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	if p.ended.heard = heard; !heard {
		p.ended.unanswered++
	}
}

// unanswered is how many calls have ended without an answer.
func (p *Process) unanswered() int {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	return p.ended.unanswered
}
