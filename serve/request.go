package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// maxOwner is the length of the longest owner in bytes. Leasehold's own have 32, and MySQL's column
// has room for 255.
const maxOwner = 255

// bodyWithin is how long a client may take to send a body. net/http reads one that no handler has
// read, before it sends the answer.
const bodyWithin = 10 * time.Second

// maxTTL is ten years, as in package leasehold.
const maxTTL = 10 * 365 * 24 * time.Hour

// read reads a call's body into v. If it fails, it has answered.
func (s *Server) read(w http.ResponseWriter, r *http.Request, v any) bool {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		s.refuse(w, http.StatusUnsupportedMediaType, wire.CodeInvalid, errors.New("the Content-Type is to be application/json"))
		return false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.opts.MaxBody))
	if err == nil {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // otherwise it would end the wait for other holders
	} else {
		w.Header().Set("Connection", "close") // do not wait for the rest of the body
	}
	if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
		s.refuse(w, http.StatusRequestEntityTooLarge, wire.CodeLimit, fmt.Errorf("a body above %d bytes", s.opts.MaxBody))
		return false
	}
	if err == nil {
		err = decode(body, v)
	}
	if err != nil {
		s.invalid(w, err)
	}
	return err == nil
}

// reads returns a handler that reads a call's body and passes it on.
func reads[C any](s *Server, call func(w http.ResponseWriter, r *http.Request, c *C)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var c C
		if s.read(w, r, &c) {
			call(w, r, &c)
		}
	}
}

// decode parses exactly one JSON value. It refuses misspelt fields, and text in which different
// names could become equal.
func decode(body []byte, v any) error {
	if !utf8.Valid(body) || loneSurrogate(body) {
		return errors.New("the body is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("the body is not the JSON that is wanted: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows the JSON of the body")
	}
	return checkFields(json.NewDecoder(bytes.NewReader(body)), false)
}

// checkFields refuses repeated fields and other spellings of a field's name in the next value.
// encoding/json uses the last repetition and ignores case, while a proxy before the service may use
// another field. free means that any name is allowed, as for labels.
func checkFields(d *json.Decoder, free bool) error {
	opening, err := d.Token()
	if err != nil || opening != json.Delim('{') && opening != json.Delim('[') {
		return err
	}
	said := make(map[string]bool)
	for d.More() {
		name := ""
		if opening == json.Delim('{') {
			field, err := d.Token()
			if err != nil {
				return err
			}
			name, _ = field.(string)
			if said[name] || !free && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") != "" {
				return fmt.Errorf("the field %.50q is said twice, or unknown", name)
			}
			said[name] = true
		}
		if err := checkFields(d, name == "labels"); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// checkQuery refuses fields that a call does not accept, and repeated ones, as decode does.
func checkQuery(raw string, takes []string) error {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return fmt.Errorf("the query is not as it is to be: %w", err)
	}
	for field, values := range query {
		if !slices.Contains(takes, field) || len(values) > 1 {
			return fmt.Errorf("the field %.50q of the query is said twice, or unknown", field)
		}
	}
	return nil
}

var escaped = regexp.MustCompile(`\\(?:u([0-9a-fA-F]{4})|.)`)

// loneSurrogate reports whether JSON text has an escape for half of a surrogate pair. encoding/json
// turns all of these into the same character.
func loneSurrogate(body []byte) bool {
	if !bytes.Contains(body, []byte(`\u`)) {
		return false
	}
	first := -1 // where the first half ended
	for _, at := range escaped.FindAllSubmatchIndex(body, -1) {
		code := uint64(0)
		if at[2] >= 0 {
			code, _ = strconv.ParseUint(string(body[at[2]:at[3]]), 16, 32)
		}
		second := code >= 0xDC00 && code <= 0xDFFF
		if second != (first == at[0]) {
			return true
		}
		if first = -1; utf16.IsSurrogate(rune(code)) && !second {
			first = at[1]
		}
		if first < 0 {
			continue
		}
		if first == len(body) || body[first] != '\\' {
			return true
		}
	}
	return first >= 0
}

// requestOf checks the fields that all calls on claims share.
func (s *Server) requestOf(c *wire.Claim, ttl int64) (driver.Request, error) {
	req := driver.Request{Resource: c.Name, Owner: c.Owner, Limit: c.Limit, Weight: c.Weight, Note: c.Note, TTL: s.roundUp(wire.Duration(ttl))}
	if err := driver.CheckName(c.Name); err != nil {
		return req, err
	}
	switch c.Mode {
	case "", wire.Exclusive:
	case wire.Shared:
		req.Mode = driver.Shared
	default:
		return req, fmt.Errorf("mode is %s or %s", wire.Exclusive, wire.Shared)
	}
	switch {
	case c.Limit < 0, c.Limit > math.MaxInt32:
		return req, fmt.Errorf("limit is 0 to %d", math.MaxInt32)
	case c.Limit > 0 && req.Mode != driver.Shared:
		return req, errors.New("a limit is for the mode shared")
	case c.Weight < 0, c.Weight > driver.MaxWeight:
		return req, fmt.Errorf("weight is 1 to %d", driver.MaxWeight)
	case c.Weight > 0 && req.Mode != driver.Shared:
		return req, errors.New("a weight is for the mode shared")
	case c.Weight > 1 && !s.driver.Features().Weights:
		return req, fmt.Errorf("%w: weights", driver.ErrUnsupported)
	case c.Call < 0:
		return req, errors.New("call is negative")
	case c.Answered < 0, c.Answered > 0 && c.Answered >= c.Call:
		return req, errors.New("answered is the number of a call before this one")
	}
	if err := errors.Join(checkOwner("owner", c.Owner), checkOwner("caller", c.Caller)); err != nil {
		return req, err
	}
	return req, driver.CheckNote(c.Note)
}

func checkOwner(what, owner string) error {
	if len(owner) > maxOwner {
		return fmt.Errorf("%s has %d bytes, at most %d", what, len(owner), maxOwner)
	}
	if strings.ContainsFunc(owner, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return fmt.Errorf("%s is of printable ASCII without blanks", what)
	}
	return nil
}

// checkTTL refuses a TTL that the engine does not support.
func (s *Server) checkTTL(ms int64) error {
	ttl, f := wire.Duration(ms), s.driver.Features()
	switch {
	case ms <= 0:
		return errors.New("ttl_ms is missing, or not positive")
	case ms > wire.Millis(maxTTL):
		return fmt.Errorf("ttl_ms is above %d", wire.Millis(maxTTL))
	case f.SessionTTL > 0 && ttl != f.SessionTTL:
		return fmt.Errorf("%w: leases hang on the instance's session, whose length gives them all %d ms", driver.ErrUnsupported, wire.Millis(f.SessionTTL))
	case ttl < f.MinTTL:
		err := fmt.Errorf("%w: the least ttl_ms is %d", driver.ErrUnsupported, wire.Ceil(f.MinTTL))
		if f.LeastBy != "" {
			err = fmt.Errorf("%w, %s", err, f.LeastBy)
		}
		return err
	}
	return nil
}

// roundUp returns the TTL, rounded up as the engine does.
func (s *Server) roundUp(ttl time.Duration) time.Duration {
	if step := s.driver.Features().Step; step > 0 {
		ttl = (ttl + step - 1) / step * step
	}
	return ttl
}

// rejected answers a call with invalid fields.
func (s *Server) rejected(w http.ResponseWriter, err error) {
	if errors.Is(err, driver.ErrUnsupported) || errors.Is(err, driver.ErrInvalidName) {
		s.failed(w, err)
		return
	}
	s.invalid(w, err)
}
