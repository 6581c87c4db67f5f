package described

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// An exchange is a request and its answer. Exchanges that were cut off are left out. Of a stream
// that was cut off, there is what was sent.
type exchange struct {
	asked    *http.Request
	body     []byte
	answered *http.Response
	answer   []byte
}

// exchanges returns the exchanges of a connection, in HTTP/1.1 or HTTP/2.
func exchanges(asked, answered []byte) ([]*exchange, error) {
	if rest, is2 := bytes.CutPrefix(asked, []byte(http2.ClientPreface)); is2 {
		return exchanges2(rest, answered)
	}
	return exchanges1(asked, answered)
}

// exchanges1 parses HTTP/1.1: requests and answers have the same order.
func exchanges1(asked, answered []byte) (all []*exchange, err error) {
	in, out := bufio.NewReader(bytes.NewReader(asked)), bufio.NewReader(bytes.NewReader(answered))
	for {
		e := &exchange{}
		if e.asked, err = http.ReadRequest(in); err != nil {
			return all, ignoreEnd(err)
		}
		if e.body, err = io.ReadAll(e.asked.Body); err != nil {
			return all, ignoreEnd(err)
		}
		if e.answered, err = http.ReadResponse(out, e.asked); err != nil {
			return all, ignoreEnd(err)
		}
		e.answer, err = io.ReadAll(e.answered.Body)
		if err == nil || e.isStream() {
			all = append(all, e)
		}
		if err != nil {
			return all, ignoreEnd(err)
		}
	}
}

// ignoreEnd returns nil for the error of a connection that was cut off.
func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

func (e *exchange) isStream() bool {
	return e.answered != nil && e.answered.Header.Get("Content-Type") == "text/event-stream"
}

// A half is what one side sent in one stream of HTTP/2.
type half struct {
	header []hpack.HeaderField
	body   []byte
	whole  bool
}

func (h *half) field(name string) string {
	for _, f := range h.header {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

func (h *half) fields() http.Header {
	header := make(http.Header)
	for _, f := range h.header {
		if !f.IsPseudo() {
			header.Add(f.Name, f.Value)
		}
	}
	return header
}

// exchanges2 parses HTTP/2: each stream is an exchange.
func exchanges2(asked, answered []byte) (all []*exchange, err error) {
	in, err := halves(asked)
	if err != nil {
		return nil, fmt.Errorf("requests: %w", err)
	}
	out, err := halves(answered)
	if err != nil {
		return nil, fmt.Errorf("answers: %w", err)
	}
	for _, id := range slices.Sorted(maps.Keys(in)) {
		req, resp := in[id], out[id]
		if resp == nil || !req.whole {
			continue
		}
		e, err := pair(req, resp)
		if err != nil {
			return nil, err
		}
		if resp.whole || e.isStream() {
			all = append(all, e)
		}
	}
	return all, nil
}

// pair returns the exchange of both halves of a stream.
func pair(req, resp *half) (*exchange, error) {
	u, err := url.ParseRequestURI(req.field(":path"))
	if err != nil {
		return nil, err
	}
	status, err := strconv.Atoi(resp.field(":status"))
	if err != nil {
		return nil, err
	}
	return &exchange{
		asked: &http.Request{Method: req.field(":method"), URL: u, Host: req.field(":authority"), Header: req.fields()}, body: req.body,
		answered: &http.Response{StatusCode: status, Header: resp.fields()}, answer: resp.body,
	}, nil
}

// halves parses the frames of one side.
func halves(said []byte) (map[uint32]*half, error) {
	all := make(map[uint32]*half)
	frames := http2.NewFramer(io.Discard, bytes.NewReader(said))
	frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		frame, err := frames.ReadFrame()
		if err != nil {
			return all, ignoreEnd(err)
		}
		id := frame.Header().StreamID
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			if all[id] == nil {
				all[id] = &half{header: f.Fields}
			}
			all[id].whole = f.StreamEnded()
		case *http2.DataFrame:
			if h := all[id]; h != nil {
				h.body, h.whole = append(h.body, f.Data()...), f.StreamEnded()
			}
		}
	}
}
