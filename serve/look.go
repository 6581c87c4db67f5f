package serve

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// abilities returns the abilities of the engine and of the driver.
func (s *Server) abilities() wire.Abilities {
	f := s.driver.Features()
	operates := s.operator != nil
	a := wire.Abilities{
		Fencing: f.Fencing, Shared: f.Shared, Fair: f.Fair, Wakes: f.Wakes, Resumes: f.Resumes,
		MinTTL: wire.Ceil(f.MinTTL), Step: max(wire.Ceil(f.Step), 1), SessionTTL: wire.Millis(f.SessionTTL),
		Inspects: operates, Evicts: operates, Raises: operates && f.Raises, Lingers: f.Lingers, Notes: f.Notes, Bars: f.Bars,
		Tells: f.Tells, Recalls: f.Recalls, Keeps: f.Keeps, WantedOnce: f.Tells, Weights: f.Weights, Limits: operates && f.Limits,
		MaxWait: wire.Millis(s.opts.MaxWait),
	}
	// A claim does no I/O before its first call.
	if c, err := s.driver.Claim(driver.Request{Resource: "features", Owner: newOwner(), TTL: wire.Duration(s.anyTTL())}); err == nil {
		_, a.Lifts = c.(driver.FenceLifter)
	}
	return a
}

func (s *Server) showFeatures(w http.ResponseWriter, _ *http.Request) {
	s.answer(w, http.StatusOK, s.features)
}

// ask makes one call to the engine that changes nothing.
func (s *Server) ask(w http.ResponseWriter, r *http.Request, ask func(ctx context.Context) error) {
	if s.operator == nil {
		s.failed(w, fmt.Errorf("%w: showing what is held", driver.ErrUnsupported))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 2*callBound)
	defer cancel()
	if err := ask(ctx); err != nil {
		s.failed(w, err)
	}
}

// inspect returns who holds name. If the engine does not tell, the State is empty.
func (s *Server) inspect(ctx context.Context, name string) (driver.State, error) {
	if s.operator == nil {
		return driver.State{}, nil
	}
	return s.operator.Inspect(ctx, name)
}

func (s *Server) show(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("name")
	if err := driver.CheckName(name); err != nil {
		s.rejected(w, err)
		return
	}
	if about(w, name, ""); !s.may(w, View, name) {
		return
	}
	s.ask(w, r, func(ctx context.Context) error {
		asked := time.Now()
		state, err := s.operator.Inspect(ctx, name)
		if err != nil && !errors.Is(err, driver.ErrCorrupt) {
			return err
		}
		state.Resource = name
		shown := s.hub.times(state, asked)
		shown.Damaged = textOf(err)
		s.claims.marks(&shown)
		s.answer(w, http.StatusOK, shown)
		return nil
	})
}

func checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	return driver.CheckName(prefix)
}

//go:embed openapi.json
var openapi []byte

// Description is the OpenAPI 3.1 description of the service, in JSON.
func Description() []byte { return append([]byte(nil), openapi...) }

func (s *Server) describe(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openapi) // the client has gone
}

func (s *Server) healthy(w http.ResponseWriter, _ *http.Request) { s.done(w) }

// readyBound is how long the engine may take to answer before the instance is not ready.
const readyBound = 2 * time.Second

// ready answers whether the instance accepts calls: the engine answers and accepts writes.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	if s.draining.Err() != nil {
		s.unready(w, errDraining)
		return
	}
	p := s.probed()
	select {
	case <-p.answered:
	case <-r.Context().Done():
		return // nobody reads the answer
	}
	switch {
	case p.err == nil:
		s.done(w)
	case errors.Is(p.err, driver.ErrFull): // leases are still renewed and released, here as well as elsewhere
		s.answer(w, http.StatusOK, wire.Answer{Outcome: wire.Done, Warning: p.err.Error()})
	default:
		s.unready(w, p.err)
	}
}

// readiness is the state of readiness checks.
type readiness struct {
	grants  grants
	probing struct {
		mu  sync.Mutex
		now *probe // guarded by mu; nil: no probe is in progress
	}
}

// A probe is one readiness check of the engine, shared by all requests that arrive meanwhile:
// anybody may send them, as often as they like.
type probe struct {
	answered chan struct{} // closed when err is known
	err      error
}

// probed returns the probe in progress, or a new one.
func (s *Server) probed() *probe {
	s.probing.mu.Lock()
	defer s.probing.mu.Unlock()
	if p := s.probing.now; p != nil {
		return p
	}
	p := &probe{answered: make(chan struct{})}
	s.probing.now = p
	if !s.life.Go(func() {
		ctx, cancel := context.WithTimeout(s.life, readyBound)
		defer cancel()
		p.err = s.probe(ctx)
		s.probing.mu.Lock()
		s.probing.now = nil
		s.probing.mu.Unlock()
		close(p.answered)
	}) {
		p.err = errDraining
		s.probing.now = nil
		close(p.answered)
	}
	return p
}

func (s *Server) unready(w http.ResponseWriter, err error) {
	s.answer(w, http.StatusServiceUnavailable, wire.Answer{Outcome: wire.Refused, Code: wire.CodeUnready, Error: err.Error()})
}

// probeName is the resource that probes ask for. Nobody acquires it.
const probeName = "leasehold-readyz"

// probe checks that the engine answers and grants.
func (s *Server) probe(ctx context.Context) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	return s.storeGrants(ctx)
}

// reach makes a call to the engine that changes nothing. If the engine cannot be inspected, it
// renews a lease that nobody holds.
func (s *Server) reach(ctx context.Context) error {
	if s.operator != nil {
		_, err := s.operator.Inspect(ctx, probeName)
		return err
	}
	ttl := wire.Duration(s.anyTTL())
	c, err := s.claim(driver.Request{Resource: probeName, Owner: newOwner(), TTL: ttl})
	if err != nil {
		return err
	}
	if _, err = c.Renew(ctx, ttl); errors.Is(err, driver.ErrLost) {
		s.watched.answers() // nothing but the store knows of this owner
		return nil
	}
	return err
}

func (s *Server) notFound(w http.ResponseWriter, _ *http.Request) {
	s.refuse(w, http.StatusNotFound, wire.CodeNotFound, errors.New("there is no such call: see /openapi.json"))
}
