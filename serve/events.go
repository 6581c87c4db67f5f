package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/waiting"
	"github.com/leasehold-go/leasehold/internal/wire"
)

const (
	// beatEvery is how often a stream sends something, so that both ends notice if the other is
	// gone.
	beatEvery = 5 * time.Second
	// writeWithin is how long a listener may take to read before it is dropped.
	writeWithin = 10 * time.Second
	// readyWithin is how long a stream waits for the first look before it begins without it.
	readyWithin = 2 * time.Second
)

// A stream is one listener's connection.
type stream struct {
	w   http.ResponseWriter
	ctl *http.ResponseController
	hub *hub
}

func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	prefix := r.URL.Query().Get("prefix")
	if err := checkPrefix(prefix); err != nil {
		s.rejected(w, err)
		return
	}
	kinds, err := kindsOf(r.URL.Query().Get("kind"), wire.EventKinds)
	if err != nil {
		s.invalid(w, err)
		return
	}
	v := w.(*visit)
	leave, ok := s.gate.enter(v.who(), streams)
	if !ok {
		s.tooMany(w)
		return
	}
	defer leave()
	l := s.hub.listen(prefix, kinds, v.client)
	defer s.hub.leave(l)
	if _, gone := waiting.Sleep(r.Context(), nil, l.ready, readyWithin); gone != nil {
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // for nginx
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead { // HEAD ends here: other calls may follow on its connection
		return
	}
	st := &stream{w, http.NewResponseController(w), s.hub}
	if st.write([]byte(": listening\n\n")) == nil {
		st.run(r.Context(), s.draining, l, func() bool { return s.stillMay(r, l) })
	}
	_ = st.ctl.SetWriteDeadline(time.Time{}) // it fails on a connection without deadlines; on others, later calls need the reset
}

// kindsOf parses the kinds that a call asks for; nil: the parameter is absent.
func kindsOf(text string, known []string) (kinds []string, err error) {
	if text == "" {
		return nil, nil
	}
	for _, kind := range strings.Split(text, ",") {
		if !slices.Contains(known, kind) {
			return nil, fmt.Errorf("kind is one of %s, or several with commas", strings.Join(known, ", "))
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

// stillMay updates what the listener may view, because a stream may be open for months. It reports
// whether the listener is still known.
func (s *Server) stillMay(r *http.Request, l *listener) bool {
	if s.opts.Client == nil {
		return true
	}
	client, err := s.opts.Client(r)
	if err == nil {
		s.hub.becomes(l, client)
	}
	return err == nil
}

// run writes the listener's events until the connection or the server ends, or the listener is no
// longer allowed.
func (st *stream) run(ctx, draining context.Context, l *listener, may func() bool) {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		var err error
		select {
		case <-l.more:
			err = st.pass(l)
		case <-beat.C:
			if !may() {
				return
			}
			err = st.write([]byte(": still here\n\n"))
		case <-draining.Done():
			_ = st.pass(l) // what is queued, such as the event that opens the stream
			return
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

var errMissed = errors.New("the reader is too far behind")

// pass writes the events that are queued for the listener. If some were dropped, it writes that
// instead, and returns errMissed.
func (st *stream) pass(l *listener) error {
	all, missed := st.hub.take(l)
	if missed {
		_ = st.write(told{kind: wire.EventMissed}.frame()) // the stream ends in any case
		return errMissed
	}
	for i, e := range all {
		if err := st.write(*e); err != nil {
			return err
		}
		all[i] = nil // so that it can be freed once the others have it
		st.hub.wrote(l, e)
	}
	return nil
}

func (st *stream) write(text []byte) error {
	if err := st.ctl.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil {
		return err
	}
	if _, err := st.w.Write(text); err != nil {
		return err
	}
	return st.ctl.Flush()
}
