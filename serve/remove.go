package serve

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// removes says why a waiter cannot be removed; nil: it can.
func (s *Server) removes() error {
	return fmt.Errorf("%w: removing waiters", driver.ErrUnsupported)
}

// remove takes a waiter's place away.
func (s *Server) remove(w http.ResponseWriter, r *http.Request) {
	var c wire.RemoveCall
	if !s.read(w, r, &c) {
		return
	}
	switch {
	case driver.CheckName(c.Name) != nil:
		s.rejected(w, driver.CheckName(c.Name))
		return
	case (c.Owner == "") == (c.Handle == ""):
		s.invalid(w, errors.New("want the owner, or its handle"))
		return
	case strings.TrimSpace(c.Reason) == "":
		s.invalid(w, errors.New("the reason is missing"))
		return
	case driver.CheckNote(c.Reason) != nil:
		s.invalid(w, fmt.Errorf("reason: %w", driver.CheckNote(c.Reason)))
		return
	}
	if about(w, c.Name, c.Owner).Reason = c.Reason; !s.may(w, Evict, c.Name) {
		return
	}
	s.failed(w, s.removes())
}
