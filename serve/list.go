package serve

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pages"
	"github.com/leasehold-go/leasehold/internal/wire"
)

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept-Encoding")
	w.(*visit).zips = takesGzip(r)
	query := r.URL.Query()
	prefix := query.Get("prefix")
	limit, err := limitOf(query.Get("limit"))
	at, bad := placeOf(query.Get("after"))
	if err := errors.Join(checkPrefix(prefix), err, bad); err != nil {
		s.rejected(w, err)
		return
	}
	client := w.(*visit).client
	s.ask(w, r, func(ctx context.Context) error {
		asked := time.Now()
		states, next, err := s.page(ctx, client.views(prefix), at, limit)
		if err != nil && !errors.Is(err, driver.ErrCorrupt) {
			return err
		}
		locks := wire.Locks{Locks: []wire.State{}, Next: next, Damaged: textOf(err)}
		if err != nil && !client.May(View, "") { // the error names the damaged resource
			locks.Damaged = driver.ErrCorrupt.Error()
		}
		for _, state := range states {
			locks.Locks = append(locks.Locks, s.hub.times(state, asked))
		}
		s.answer(w, http.StatusOK, locks)
		return nil
	})
}

// limitOf parses the length of a page.
func limitOf(text string) (int, error) {
	if text == "" {
		return wire.Page, nil
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > wire.MaxPage {
		return 0, fmt.Errorf("limit is to be a number from 1 to %d", wire.MaxPage)
	}
	return limit, nil
}

// page returns a page of the names that begin with one of views, which the client may view. Neither
// it nor its cursor reveals any other name.
func (s *Server) page(ctx context.Context, views []string, at place, limit int) (states []driver.State, next string, damaged error) {
	i, _ := slices.BinarySearch(views, at.view)
	for began := at; i < len(views); i++ {
		if at.view != views[i] { // or the client's rights have changed
			at = place{view: views[i]}
		}
		if len(states) >= limit {
			return states, at.String(), damaged
		}
		some, next, err := pages.Fill(ctx, s.operator, at.view, at.after, limit-len(states))
		switch {
		case err == nil:
		case errors.Is(err, driver.ErrCorrupt):
			damaged = errors.Join(damaged, err)
		case at == began || began == place{} && len(states) == 0:
			return nil, "", err
		default:
			return states, at.String(), damaged
		}
		for _, state := range some { // the cursor, which may be made up, must not show others
			if strings.HasPrefix(state.Resource, at.view) {
				states = append(states, state)
			}
		}
		if next != "" {
			return states, place{at.view, next}.String(), damaged
		}
	}
	return states, "", damaged
}

// A place is the position between two pages.
type place struct {
	view  string // the prefix of views that is being listed
	after string // the engine's cursor
}

// placeOf is the reverse of place.String.
func placeOf(text string) (place, error) {
	if text == "" {
		return place{}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	view, after, ok := strings.Cut(string(b), "\x00") // no name contains it
	if err != nil || !ok {
		return place{}, errors.New("after is to be a next that the service has told")
	}
	return place{view, after}, nil
}

func (p place) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(p.view + "\x00" + p.after))
}
