package explore

import (
	"context"
	"errors"
	"slices"
)

// ErrCut is the error of a call whose link broke. Whether the engine has served the call is
// unknown.
var ErrCut = errors.New("explore: link broke")

// A Process is one of the processes that use the engine. It has a driver and a Locker of its own.
type Process struct {
	world *World
	name  string
	dead  bool    // guarded by World.mu
	lines []*Line // guarded by World.mu; those that are not closed
	ended ended   // guarded by World.mu
}

// ended says how the calls of a process have ended, and how many have not.
type ended struct {
	unanswered int  // number of calls that have ended without an answer
	heard      bool // the last call that has ended had an answer
	underWay   int  // number of calls that have not ended
}

// Name returns a short name, the same in every schedule.
func (p *Process) Name() string { return p.name }

// A Line is a connection of a process. Requests stay in order, and so do the answers.
type Line struct {
	process *Process
	whole   *Line  // the connection of a stream; nil: this is no stream
	down    bool   // guarded by World.mu; nothing returns over it any more
	lost    bool   // guarded by World.mu; nothing reaches the engine over it any more
	once    bool   // no request is served twice
	broken  func() // notifies the process
}

// Line opens a connection. broken is called, in a goroutine of its own, when the network has cut
// it. A dead process's line is cut at once.
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

// Once means that no request on the line is served twice. It is for protocols that count the
// requests of a connection, where neither the client nor a proxy repeats one. If an unasked message of
// the engine is lost, so is the line.
func (l *Line) Once() { l.once = true }

// Stream opens a stream within the connection, as in HTTP/2 and gRPC. Its messages keep their own
// order, but may overtake messages of other streams. It is lost with the connection, and is not
// closed.
//
// If an unasked message of the engine is lost, only the stream is cut. Then ended is called, in a
// goroutine of its own; nil: nobody notices.
func (l *Line) Stream(ended func()) *Line {
	return &Line{process: l.process, whole: l.connection(), broken: ended}
}

func (l *Line) connection() *Line {
	if l.whole != nil {
		return l.whole
	}
	return l
}

// Passes reports whether anything still comes back over the connection. An engine checks it before
// it sends something unasked that is no event.
func (l *Line) Passes() bool {
	l.process.world.mu.Lock()
	defer l.process.world.mu.Unlock()
	return !l.connection().down
}

// Close closes the connection from the process's side. Requests on their way may still arrive.
func (l *Line) Close() {
	l.process.world.mu.Lock()
	defer l.process.world.mu.Unlock()
	l.close()
}

func (l *Line) close() {
	l.down = true
	l.process.lines = slices.DeleteFunc(l.process.lines, func(o *Line) bool { return o == l })
}

// cut closes the connection for both sides. Requires World.mu.
func (l *Line) cut() {
	if !l.down {
		l.close()
		go l.broken()
	}
}

// Send sends a request. what and touches must be the same whenever the schedule runs. touches names
// the part of the engine that the request concerns; "" concerns everything. Requests that touch
// different parts do not depend on each other.
//
// The engine serves the request by calling serve in a goroutine of its own: now or later, once or
// twice, even after the line was closed. arrive is called with the first answer, if that gets back.
func (l *Line) Send(what, touches string, serve func() (answer any), arrive func(answer any)) {
	l.send(&event{touches: touches}, what, serve, arrive)
}

// send sends e, unless the process is dead.
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

// Beat sends a message that keeps a line or a session alive. It is like Send, but is never chosen
// for a change: it is late or lost only with its line and its process.
func (l *Line) Beat(what string, serve func() (answer any), arrive func(answer any)) {
	l.send(&event{touches: what, beat: true, timing: timing{decided: true}}, what, serve, arrive)
}

// Dial sends the first message of a line, whose answer the process awaits before it sends others.
// It is like Send. If it is late, calls such as a release may end before they were sent. Then
// something may be left behind, as if a message was lost.
func (l *Line) Dial(what string, serve func() (answer any), arrive func(answer any)) {
	l.send(&event{dials: true}, what, serve, arrive)
}

// Push delivers an unasked message of the engine. It is lost if the line is down.
func (l *Line) Push(what string, arrive func()) {
	w := l.process.world
	w.post(&event{kind: push, process: l.process, label: l.process.name + " " + what, line: l, happen: arrive})
}

// Call sends a request on a line of its own; serve is as for Send. It returns the answer, or
// [ErrCut], or the error of ctx if that ends first. After an error the request may still be served.
func (p *Process) Call(ctx context.Context, what, touches string, serve func() any) (any, error) {
	answers, cut := make(chan any, 1), make(chan struct{})
	p.calls()
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

// calls records that a call has begun.
func (p *Process) calls() {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	p.ended.underWay++
}

// called records that a call has ended.
func (p *Process) called(heard bool) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	p.ended.underWay--
	if p.ended.heard = heard; !heard {
		p.ended.unanswered++
	}
}

// unanswered returns how many calls have ended without an answer.
func (p *Process) unanswered() int {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	return p.ended.unanswered
}
