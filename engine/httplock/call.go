package httplock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// mostAnswer bounds how much of an answer is read. A list of a million locks is smaller.
const mostAnswer = 1 << 30

// errSilent means that there was no answer, or none of the service. The call may have been served.
var errSilent = errors.New("httplock: no answer")

// A reply is an answer of the service other than a yes.
type reply struct {
	wire.Answer
	status int
}

// Error returns the text of the service.
func (r *reply) Error() string { return fmt.Sprintf("httplock: %s: %s", r.Code, r.Answer.Error) }

// Unwrap returns the sentinel of a no. An unknown outcome has none.
func (r *reply) Unwrap() error {
	switch r.Outcome {
	case wire.Lost:
		switch r.Code {
		case wire.CodeEvicted:
			return errEvicted
		case wire.CodeUsed:
			return driver.ErrBarred
		}
		return driver.ErrLost
	case wire.Busy:
		if r.Code == wire.CodeNotYet {
			return driver.ErrNotYet
		}
		return driver.ErrBusy
	case wire.Refused:
		return refusals[r.Code]
	}
	return nil
}

// errEvicted is the error for a lease that was evicted. The reply has the reason.
var errEvicted = fmt.Errorf("%w: %w", driver.ErrLost, driver.ErrEvicted)

var refusals = map[string]error{
	wire.CodeUnsupported: driver.ErrUnsupported, wire.CodeInvalidName: driver.ErrInvalidName, wire.CodeCorrupt: driver.ErrCorrupt, wire.CodeTooHeavy: driver.ErrTooHeavy,
	wire.CodeReadOnly: driver.ErrReadOnly, wire.CodeFull: driver.ErrFull,
	wire.CodeDenied: ErrDenied, wire.CodeUnnamed: ErrDenied, wire.CodeWrongToken: ErrDenied, wire.CodeOrigin: ErrDenied,
}

// post makes a call that changes something. A yes that is not from the service, for example from
// the login page of a network, is no answer.
func (d *service) post(ctx context.Context, watch watching, path string, body any, yes answer) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	err = d.do(ctx, d.client.Load(), watch, http.MethodPost, path, text, yes)
	if err == nil && !yes.isYes() {
		err = fmt.Errorf("%w: a yes to something else", errSilent)
	}
	return err
}

// An answer is a yes, once it is read.
type answer interface{ isYes() bool }

// done is the yes to a call that changes something and grants nothing.
type done struct{ wire.Answer }

func (a *done) isYes() bool { return a.Outcome == wire.Done }

// A granted is the yes to an acquire or a renewal of a claim.
type granted struct {
	wire.Grant
	claim *claim
}

func (g *granted) isYes() bool {
	return g.Outcome == wire.Granted && g.Name == g.claim.req.Resource && g.Owner == g.claim.req.Owner
}

func (d *service) get(ctx context.Context, path string, query url.Values, answer any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return d.again(ctx, func(bool) error {
		return d.do(ctx, d.client.Load(), d.links.Watch, http.MethodGet, path, nil, answer)
	})
}

// A watching bounds how long a call waits for an answer over the present connections. It is a
// method of links.Links, or patient.
type watching = func(ctx context.Context, cancel context.CancelCauseFunc) *links.Call

// patient does not bound a call, for calls that wait for other holders.
func patient(context.Context, context.CancelCauseFunc) *links.Call { return nil }

// do makes one call by client. Its error is ErrClosed, a *reply, an error before sending, or one that
// says that there was no answer.
func (d *service) do(ctx context.Context, client *http.Client, watch watching, method, path string, body []byte, answer any) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if d.life.Err() != nil {
		return driver.ErrClosed
	}
	call, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(d.life, func() { cancel(nil) })()
	attempt := watch(ctx, cancel)
	resp, err := d.send(call, client, method, path, body)
	if err == nil {
		defer resp.Body.Close()
		err = readAnswer(resp, answer)
	}
	err = attempt.End(err)
	switch {
	case err == nil:
	case d.life.Err() != nil:
		return driver.ErrClosed
	case ctx.Err() != nil && errors.Is(err, errSilent):
		return fmt.Errorf("%w: %w", errSilent, ctx.Err())
	}
	return err
}

// send sends a request and returns the response, whatever its status. errSilent means that there
// was none.
func (d *service) send(ctx context.Context, client *http.Client, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, d.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("httplock: %w", err)
	}
	if d.opts.Headers != nil {
		d.opts.Headers(ctx, req.Header)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "leasehold")
	if d.opts.Token != nil {
		token, err := d.opts.Token()
		if err != nil {
			return nil, fmt.Errorf("httplock: the token: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSilent, err)
	}
	return resp, nil
}

// readAnswer reads a yes into answer. It returns a *reply for any other answer of the service. An
// answer of something in between, such as a balancer, is an unknown outcome.
func readAnswer(resp *http.Response, answer any) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	if err != nil {
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(body, answer); err != nil {
			return fmt.Errorf("%w: a yes that is not the expected JSON", errSilent)
		}
		return nil
	}
	r := &reply{status: resp.StatusCode}
	if err := json.Unmarshal(body, &r.Answer); err != nil || r.Outcome == "" {
		return fmt.Errorf("%w of the service: %s", errSilent, resp.Status)
	}
	return r
}

// isSilent reports whether a call that failed with err may have been served.
func isSilent(err error) bool {
	r, answered := errors.AsType[*reply](err)
	return errors.Is(err, errSilent) || answered && (r.Outcome == wire.Unknown || r.Code == wire.CodeReadOnly || r.Code == wire.CodeFull)
}
