package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/serve/page"
)

// A visit is one request, and what will be reported about it at its end.
type visit struct {
	http.ResponseWriter
	r      *http.Request
	client *Client
	began  time.Time
	came   boottime.Instant // no earlier than this
	zips   bool             // compress a long answer
	status int              // of the answer; 0: there is none
	record
}

// A record is one line of the audit log.
type record struct {
	Time    string `json:"time"` // of this machine's clock, for people
	Client  string `json:"client,omitempty"`
	From    string `json:"from"`
	Call    string `json:"call"`
	Name    string `json:"name,omitempty"`
	Owner   string `json:"owner,omitempty"` // only its beginning
	Token   string `json:"token,omitempty"`
	Outcome string `json:"outcome"`
	Code    string `json:"code,omitempty"`
	Reason  string `json:"reason,omitempty"` // of an eviction
	Took    int64  `json:"took_ms"`

	Details *wire.Details `json:"details,omitempty"` // about who acquires or is evicted
}

// Unwrap is for [http.ResponseController].
func (v *visit) Unwrap() http.ResponseWriter { return v.ResponseWriter }

// who identifies the client for the limits.
func (v *visit) who() string {
	if v.client != nil && v.client.Name != "" {
		return v.client.Name
	}
	return hostOf(v.r.RemoteAddr)
}

// about records the name and the owner of a call.
func about(w http.ResponseWriter, name, owner string) *visit {
	v := w.(*visit)
	v.Name, v.Owner = name, driver.ShortOwner(owner)
	return v
}

// may reports whether the caller has a right to name. If not, it has answered.
func (s *Server) may(w http.ResponseWriter, right Right, name string) bool {
	if w.(*visit).client.May(right, name) {
		return true
	}
	s.refuse(w, http.StatusForbidden, wire.CodeDenied, fmt.Errorf("no right to %s this name", right))
	return false
}

// Paths that are open to everybody.
var open = map[string]bool{"/openapi.json": true, "/healthz": true, "/readyz": true}

// exempt from the rate limit are calls without which a lease is lost, or stays held for too long.
var exempt = map[string]bool{wire.Renew: true, wire.Release: true}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v := &visit{ResponseWriter: w, r: r, began: time.Now(), came: s.pulse.arrival()}
	v.Call, v.From = nameOf(r.URL.Path), r.RemoteAddr
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(v.began.Add(bodyWithin)) // a connection without deadlines has another bound
	}
	if s.opts.Trace != nil && counted[r.URL.Path] != nil && r.URL.Path != wire.Events {
		ctx, end := s.opts.Trace(r, v.Call)
		r = r.WithContext(ctx)
		v.r = r
		defer func() { end(s.traced(v)) }()
	}
	s.admit(v, r)
	s.metrics.count(v)
	if r.Method == http.MethodPost {
		s.record(v)
	}
}

// admit serves a request of a known client that keeps within the limits.
func (s *Server) admit(v *visit, r *http.Request) {
	if err := s.fromHere(r); err != nil {
		s.refuse(v, http.StatusForbidden, wire.CodeOrigin, err)
		return
	}
	if open[r.URL.Path] || page.Has(r.URL.Path) {
		s.mux.ServeHTTP(v, r)
		return
	}
	if v.client = anybody; s.opts.Client != nil {
		client, err := s.opts.Client(r)
		if err != nil {
			v.Header().Set("WWW-Authenticate", "Bearer")
			if errors.Is(err, ErrWrongToken) {
				s.refuse(v, http.StatusUnauthorized, wire.CodeWrongToken, ErrWrongToken)
				return
			}
			s.refuse(v, http.StatusUnauthorized, wire.CodeUnnamed, ErrUnknownClient)
			return
		}
		v.client, v.Client = client, client.Name
	}
	if !exempt[r.URL.Path] && !s.gate.pass(v.who()) {
		s.tooMany(v)
		return
	}
	s.mux.ServeHTTP(v, r)
}

// An auditLog writes one line for each call that changes something or was meant to.
type auditLog struct {
	mu sync.Mutex
	w  io.Writer // guarded by mu
}

func (s *Server) record(v *visit) {
	if s.audit.w == nil {
		return
	}
	v.Time, v.Took = time.Now().UTC().Format(time.RFC3339Nano), time.Since(v.began).Milliseconds()
	line, err := json.Marshal(v.record)
	if err == nil {
		s.audit.mu.Lock()
		_, err = s.audit.w.Write(append(line, '\n'))
		s.audit.mu.Unlock()
	}
	if err != nil {
		s.opts.Log.Error("the audit log cannot be written", "error", err.Error())
	}
}
