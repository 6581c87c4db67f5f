package locktest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/leasehold-go/leasehold"
)

// Pairs checks the events of a Trace: that each beginning has one end after it. The zero value
// is ready.
type Pairs struct {
	mu     sync.Mutex
	open   map[pair]leasehold.Event // guarded by mu
	ended  map[pair]leasehold.Event // guarded by mu; without renewals, of which a hold has many
	broken []error                  // guarded by mu
}

// A pair identifies a wait, a hold, a renewal or a keep.
type pair struct {
	kind leasehold.Kind
	id   uint64
}

// Trace is the Trace that is checked.
func (p *Pairs) Trace(_ context.Context, e leasehold.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		p.open, p.ended = make(map[pair]leasehold.Event), make(map[pair]leasehold.Event)
	}
	key := pair{e.Kind, e.ID}
	begun, open := p.open[key]
	before, over := p.ended[key]
	switch {
	case e.ID == 0:
		p.breaks("%+v has no ID", e)
	case over:
		p.breaks("%+v comes after %+v", e, before)
	case e.Step == leasehold.StepBegun && open:
		p.breaks("%+v begins again", e)
	case e.Step == leasehold.StepBegun:
		p.begins(e, key)
	case !open:
		p.breaks("%+v has not begun", e)
	case e.Name != begun.Name || e.Engine != begun.Engine || e.Kind != leasehold.KindWait && e.Token != begun.Token:
		p.breaks("%+v is of another than %+v", e, begun)
	case e.Step.Ends():
		p.ends(e, key)
	}
}

// begins records a beginning. A hold must begin after its wait has ended with a lease. Requires
// p.mu.
func (p *Pairs) begins(e leasehold.Event, key pair) {
	if hold := p.ended[pair{leasehold.KindHold, e.ID}]; e.Kind == leasehold.KindKeep && hold.Step != leasehold.StepReleased {
		p.breaks("%+v begins after %+v", e, hold)
	}
	if wait := p.ended[pair{leasehold.KindWait, e.ID}]; e.Kind == leasehold.KindHold && (!wait.Step.Holds() || wait.Token != e.Token) {
		p.breaks("%+v begins after %+v", e, wait)
	}
	p.open[key] = e
}

// ends records an end. Requires p.mu.
func (p *Pairs) ends(e leasehold.Event, key pair) {
	delete(p.open, key)
	if e.Kind != leasehold.KindRenewal {
		p.ended[key] = e
	}
	if failed := e.Step != leasehold.StepReleased && e.Step != leasehold.StepRenewed && e.Step != leasehold.StepGivenBack && !e.Step.Holds(); failed != (e.Err != nil) {
		p.breaks("%+v has an error, or has none", e)
	}
}

func (p *Pairs) breaks(format string, args ...any) {
	p.broken = append(p.broken, fmt.Errorf("a Trace: "+format, args...))
}

// Err returns the first violations so far, or nil.
func (p *Pairs) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.broken...)
}

// Open returns the beginnings that have no end yet.
func (p *Pairs) Open() (begun []leasehold.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.open {
		begun = append(begun, e)
	}
	return begun
}
