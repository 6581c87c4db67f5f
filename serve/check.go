package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/rehearsal"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// check answers with the driver's findings about its engine. They name servers, so the caller must
// have the right to view all names.
func (s *Server) check(w http.ResponseWriter, r *http.Request) {
	if !s.may(w, View, "") {
		return
	}
	all := wire.Findings{Findings: []wire.Finding{}}
	if s.checker != nil {
		ctx, cancel := context.WithTimeout(r.Context(), callBound)
		defer cancel()
		found, err := s.checker.Check(ctx)
		for _, f := range found {
			all.Findings = append(all.Findings, wire.Finding{About: f.About, Where: f.Where, Level: f.Level.String(), Text: f.Text, Advice: f.Advice})
		}
		if err != nil {
			all.Failed = err.Error()
		}
	}
	s.answer(w, http.StatusOK, all)
}

// rehearse acquires, renews and releases a lock on a name that nobody else knows.
func (s *Server) rehearse(w http.ResponseWriter, r *http.Request, _ *struct{}) {
	if !s.may(w, Lock, rehearsal.Prefix) {
		return
	}
	if s.checker == nil {
		s.failed(w, fmt.Errorf("%w: rehearsals", driver.ErrUnsupported))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), callBound)
	defer cancel()
	switch err := s.checker.Rehearse(ctx); {
	case err == nil:
		s.done(w)
	case errors.Is(err, driver.ErrNotYet):
		s.answer(w, http.StatusConflict, wire.Answer{Outcome: wire.Busy, Code: wire.CodeNotYet, Error: err.Error()})
	case errors.Is(err, driver.ErrReadOnly), errors.Is(err, driver.ErrFull):
		s.failed(w, err)
	default: // also if the engine refuses: then it has rehearsed
		s.unknown(w, err)
	}
}
