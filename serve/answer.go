package serve

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// noted records in the visit what the logs keep of an answer.
func (v *visit) noted(answer any) {
	switch a := answer.(type) {
	case wire.Grant:
		v.Outcome, v.Token, v.Owner = a.Outcome, a.Token, driver.ShortOwner(a.Owner)
	case wire.Answer:
		v.Outcome, v.Code = a.Outcome, a.Code
	}
}

// answer writes v. It reports whether the connection accepted it.
func (s *Server) answer(w http.ResponseWriter, status int, v any) bool {
	w.(*visit).noted(v)
	w.(*visit).status = status
	body, err := json.Marshal(v)
	if err != nil { // impossible for the answers of this package
		http.Error(w, "internal error", http.StatusInternalServerError)
		return false
	}
	h := w.Header()
	body = append(body, '\n')
	if w.(*visit).zips && len(body) >= leastZipped {
		body = zipped(body)
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body))) // without it, the end of the answer is a chunk of its own
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if s.draining.Err() != nil {
		h.Set("Connection", "close")
	}
	w.WriteHeader(status)
	return deliver(w, body)
}

// leastZipped is the length from which an answer is compressed. Shorter ones fit into a packet.
const leastZipped = 1400

func zipped(body []byte) []byte {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed) // the level is valid
	_, _ = z.Write(body)                            // neither this nor Close can fail: they write into memory
	_ = z.Close()
	return b.Bytes()
}

// takesGzip reports whether a client's Accept-Encoding accepts gzip.
func takesGzip(r *http.Request) bool {
	takes := false
	for coding := range strings.SplitSeq(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
		coding, weight, _ := strings.Cut(coding, ";")
		name, value, _ := strings.Cut(strings.TrimSpace(weight), "=")
		q, err := strconv.ParseFloat(value, 64)
		wanted := weight == "" || strings.EqualFold(name, "q") && err == nil && q > 0
		switch coding = strings.TrimSpace(coding); {
		case strings.EqualFold(coding, "gzip"):
			return wanted
		case coding == "*":
			takes = wanted
		}
	}
	return takes
}

// piece is how much of an answer a client must read within writeWithin.
const piece = 64 << 10

// deliver writes a body and reports whether the connection accepted it. It ends the connection of a
// client that does not read, because the answer and the claim's turn would be kept for it.
func deliver(w http.ResponseWriter, body []byte) bool {
	ctl := http.NewResponseController(w)
	defer func() { _ = ctl.SetWriteDeadline(time.Time{}) }() // it fails on a connection without deadlines, which had none
	for part := range slices.Chunk(body, piece) {
		_ = ctl.SetWriteDeadline(time.Now().Add(writeWithin))
		if _, err := w.Write(part); err != nil {
			return false
		}
	}
	err := ctl.Flush()
	return err == nil || errors.Is(err, http.ErrNotSupported)
}

func (s *Server) done(w http.ResponseWriter) {
	s.answer(w, http.StatusOK, wire.Answer{Outcome: wire.Done})
}

// refuse answers a call that the service cannot serve. The call has changed nothing, unless code is
// wire.CodeReadOnly or wire.CodeFull.
func (s *Server) refuse(w http.ResponseWriter, status int, code string, err error) {
	s.answer(w, status, wire.Answer{Outcome: wire.Refused, Code: code, Error: err.Error()})
}

func (s *Server) invalid(w http.ResponseWriter, err error) {
	s.refuse(w, http.StatusBadRequest, wire.CodeInvalid, err)
}

func (s *Server) lost(w http.ResponseWriter, code string, err error) {
	s.answer(w, http.StatusGone, wire.Answer{Outcome: wire.Lost, Code: code, Error: err.Error()})
}

// failed answers a call whose call to the engine failed with err, which is neither nil nor a
// *driver.Busy. Only an attempt may treat ErrNotYet as a refusal: a renewal must be repeated.
func (s *Server) failed(w http.ResponseWriter, err error) {
	for _, f := range []struct {
		err    error
		status int
		code   string
	}{
		{driver.ErrUnsupported, http.StatusNotImplemented, wire.CodeUnsupported},
		{driver.ErrInvalidName, http.StatusBadRequest, wire.CodeInvalidName},
		{driver.ErrTooHeavy, http.StatusUnprocessableEntity, wire.CodeTooHeavy},
		{driver.ErrCorrupt, http.StatusInternalServerError, wire.CodeCorrupt},
		{driver.ErrReadOnly, http.StatusServiceUnavailable, wire.CodeReadOnly},
		{driver.ErrFull, http.StatusServiceUnavailable, wire.CodeFull},
	} {
		if !errors.Is(err, f.err) {
			continue
		}
		if f.status == http.StatusServiceUnavailable {
			s.grants.changed.Store(true) // so that the next readiness check asks the store
			w.Header().Set("Retry-After", "1")
		}
		s.refuse(w, f.status, f.code, err)
		return
	}
	switch {
	case errors.Is(err, driver.ErrEvicted):
		s.lost(w, wire.CodeEvicted, err)
	case errors.Is(err, driver.ErrLost):
		s.lost(w, wire.CodeLost, err)
	default:
		s.unknown(w, err)
	}
}

// unknown answers a call that may have been served. The caller must repeat it.
func (s *Server) unknown(w http.ResponseWriter, err error) {
	if err != errGone {
		v := w.(*visit)
		s.opts.Log.Warn("unknown outcome", "call", v.Call, "name", v.Name, "client", v.who(), "error", err.Error())
	}
	w.Header().Set("Retry-After", "1")
	s.answer(w, http.StatusServiceUnavailable, wire.Answer{Outcome: wire.Unknown, Code: wire.CodeUnknown, Error: err.Error()})
}

// busy answers a refusal. queued means that the place is kept for some seconds.
func (s *Server) busy(w http.ResponseWriter, b *driver.Busy, queued bool) {
	a := wire.Answer{Outcome: wire.Busy, Code: wire.CodeBusy, Error: "somebody else holds it", Queued: queued, Wakes: b.Wake != nil, Retry: wire.Ceil(b.Retry)}
	if v := w.(*visit); b.Holder != (driver.Holder{}) && v.client.May(View, v.Name) {
		a.Holder = new(holderOf(b.Holder))
		if b.Holder.Owner.Reveal() == "" {
			a.Error = "a finished job keeps it for now"
		}
	}
	s.answer(w, http.StatusConflict, a)
}

// notGranted answers an acquire that err ended, although nobody else need hold the lock. queued is as
// in busy.
func (s *Server) notGranted(w http.ResponseWriter, code string, err error, queued bool) {
	s.answer(w, http.StatusConflict, wire.Answer{Outcome: wire.Busy, Code: code, Error: err.Error(), Queued: queued})
}

// grantOf returns the answer for a grant. The service received the call at received, and sent its
// own to the engine at sent.
func grantOf(c wire.Claim, g driver.Grant, received, sent time.Time) wire.Grant {
	return wire.Grant{
		Outcome: wire.Granted, Name: c.Name, Owner: c.Owner, Token: token(g.Fence), TTL: wire.Millis(g.TTL),
		Left: max(wire.Millis(g.TTL-time.Since(sent)), 0), Waited: wire.Millis(sent.Sub(received)),
	}
}

// token returns a token as a string, because many languages have no integers above 2^53.
func token(fence uint64) string { return strconv.FormatUint(fence, 10) }

// textOf returns the text of an error; "": there is none.
func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func holderOf(h driver.Holder) wire.Holder {
	note, details := wire.Said(h.Note)
	shown := wire.Holder{
		Owner: h.Owner.String(), Handle: wire.HandleOf(h.Owner), Mode: h.Mode.String(), Limit: h.Limit, Weight: h.Weight,
		Token: token(h.Fence), Held: wire.Millis(h.Held), Left: wire.Millis(h.Left), TTL: wire.Millis(h.TTL), Note: note, Details: details,
	}
	if h.TTL > 0 && h.Left > 0 {
		shown.Since = wire.Millis(max(h.TTL-h.Left, time.Millisecond))
	}
	return shown
}

func waiterOf(w driver.Waiter) wire.Waiter {
	note, details := wire.Said(w.Note)
	return wire.Waiter{
		Owner: w.Owner.String(), Handle: wire.HandleOf(w.Owner), Mode: w.Mode.String(), Weight: w.Weight,
		Waited: wire.Millis(w.Waited), Note: note, Details: details,
	}
}

func stateOf(s driver.State) wire.State {
	state := wire.State{Name: s.Resource, Token: token(s.Fence), Limit: s.Limit, Holders: []wire.Holder{}, Waiters: []wire.Waiter{}}
	for _, h := range s.Holders {
		state.Used += int64(h.Weight)
		state.Holders = append(state.Holders, holderOf(h))
	}
	for _, w := range s.Waiters {
		state.Waiters = append(state.Waiters, waiterOf(w))
	}
	return state
}
