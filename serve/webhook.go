package serve

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/reread"
	"github.com/leasehold-go/leasehold/internal/waiting"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// A Webhook receives notices of leases that were lost or evicted, and of long waits. Each notice is
// a POST of JSON as "Standard Webhooks" specifies. The headers webhook-id, webhook-timestamp and
// webhook-signature identify the notice, the time of sending and the sender.
//
// A notice may come twice or out of order. Notices that wait to be sent are lost with the process.
// Only notices wait for the receiver.
type Webhook struct {
	// URL is where notices are posted, by http or https. Redirects are not followed.
	URL string
	// Secrets returns the secrets that sign each notice; there may be several while one is being
	// replaced. It is called for each delivery; see ReadSecrets. nil: notices are not signed.
	Secrets func() [][]byte
	// LongWait is how long a claim waits before a notice is sent. 0: five minutes.
	LongWait time.Duration
}

// Bounds of deliveries.
const (
	defaultLongWait = 5 * time.Minute
	// mostNotices is how many notices wait to be sent. More are dropped.
	mostNotices = 1000
	// noticesAtOnce is how many are sent at once, so that one that always fails delays no other.
	noticesAtOnce = 4
	// noticeBound is how long one delivery may take.
	noticeBound = 10 * time.Second
	// noticeAge is how long a notice is retried. firstPause and lastPause bound the pauses between.
	noticeAge             = time.Hour
	firstPause, lastPause = time.Second, 5 * time.Minute
	// farewellBound is how long Close waits for notices that have not been tried yet.
	farewellBound = 2 * time.Second
)

// Outcomes of notices.
const (
	noticeDelivered = "delivered"
	noticeFailed    = "failed"  // it was tried for noticeAge, or until the instance stopped
	noticeDropped   = "dropped" // there was no room for it
)

func (w *Webhook) check() error {
	u, err := url.Parse(w.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("its address is http://HOST/PATH or https://HOST/PATH") // without the address, which may contain secrets
	}
	if w.LongWait < 0 {
		return errors.New("a long wait is not negative")
	}
	return nil
}

// ReadSecrets reads the secrets of a webhook, one per line, and rereads the file when it changes.
// After the prefix whsec_ a secret is in base64, as many receivers want it. If a change cannot be
// read, it calls failed, unless that is nil, and the earlier secrets stay in use.
func ReadSecrets(path string, failed func(error)) (secrets func() [][]byte, err error) {
	file, err := reread.New(recheck, failed, func(texts [][]byte) ([][]byte, error) { return parseSecrets(path, texts[0]) }, path)
	if _, unread := errors.AsType[*os.PathError](err); unread {
		err = fmt.Errorf("read the webhook's secret: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return file.Get, nil
}

// leastSecret is the length of the shortest secret that is accepted, in bytes.
const leastSecret = 16

func parseSecrets(path string, text []byte) (secrets [][]byte, err error) {
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		secret := []byte(line)
		if coded, ok := strings.CutPrefix(line, "whsec_"); ok {
			if secret, err = base64.StdEncoding.DecodeString(coded); err != nil {
				return nil, fmt.Errorf("the webhook's secret in %s: what follows whsec_ is not base64", path)
			}
		}
		if len(secret) < leastSecret {
			return nil, fmt.Errorf("the webhook's secret in %s: it has fewer than %d bytes", path, leastSecret)
		}
		secrets = append(secrets, secret)
	}
	if len(secrets) == 0 {
		return nil, fmt.Errorf("the webhook's secret: %s is empty", path)
	}
	return secrets, nil
}

// A webhook sends notices.
type webhook struct {
	Webhook
	s        *Server
	client   *http.Client
	instance string
	wake     chan struct{} // has a token when there is something to do
	ended    chan struct{} // closed when run has returned

	mu      sync.Mutex
	waiting []*delivery // guarded by mu; in no order
	sending int         // guarded by mu; notices in flight
	failing bool        // guarded by mu; the last attempt failed
}

// A delivery is one notice that is being delivered.
type delivery struct {
	id    string
	body  []byte
	began time.Time
	due   time.Time // when the next attempt is due
	tries int
}

func newWebhook(s *Server) *webhook {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxConnsPerHost: noticesAtOnce, IdleConnTimeout: time.Minute}
	w := &webhook{Webhook: *s.opts.Webhook, s: s, instance: instanceName(), wake: make(chan struct{}, 1), ended: make(chan struct{}), client: &http.Client{
		Transport: transport, Timeout: noticeBound,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	w.LongWait = cmp.Or(w.LongWait, defaultLongWait)
	return w
}

// tell queues a notice of what happened at a time; zero: now. It never waits. A nil webhook ignores it.
func (w *webhook) tell(kind string, at time.Time, about wire.NoticeData) {
	if w == nil {
		return
	}
	id := noticeID(kind, about)
	about.Instance, about.Engine = w.instance, w.s.driver.Features().Engine
	now := time.Now()
	body, err := json.Marshal(wire.Notice{Type: kind, Time: cmp.Or(at, now).UTC().Format(time.RFC3339Nano), Data: about})
	if err != nil {
		return // impossible for a notice
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting)+w.sending >= mostNotices {
		w.s.metrics.notices.count(label("outcome", noticeDropped))
		return
	}
	w.waiting = append(w.waiting, &delivery{id: id, body: body, began: now, due: now})
	nudge(w.wake)
}

// noticeID returns the same ID for every notice about the end of one lease, whichever instance
// sends it and however much it knows. So receivers can drop repetitions. Notices of waits, and of
// leases without a token, have unique IDs.
func noticeID(kind string, about wire.NoticeData) string {
	if kind == wire.NoticeWait || about.Token == "" {
		return "msg_" + rand.Text()
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{about.Name, about.Handle, about.Token}, "\x00")))
	return "msg_" + base64.RawURLEncoding.EncodeToString(sum[:18])
}

// run sends notices until ctx ends, and then, within farewellBound, those that have not been tried.
func (w *webhook) run(ctx context.Context) {
	defer close(w.ended)
	defer w.client.CloseIdleConnections()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	context.AfterFunc(ctx, func() { time.AfterFunc(farewellBound, end) })
	var sending sync.WaitGroup
	for stops := ctx.Done(); life.Err() == nil; {
		last := ctx.Err() != nil
		if last {
			stops = nil
		}
		due, next, open := w.take(time.Now(), last)
		for _, d := range due {
			sending.Go(func() { w.send(life, d) })
		}
		if last && open == 0 {
			break
		}
		_, _ = waiting.Sleep(life, stops, w.wake, next)
	}
	sending.Wait()
	w.mu.Lock()
	n := len(w.waiting)
	w.waiting = nil
	w.mu.Unlock()
	for range n {
		w.s.metrics.notices.count(label("outcome", noticeFailed))
	}
	if n > 0 {
		w.s.opts.Log.Warn("notices for the webhook are lost, for this instance stops", "notices", n)
	}
}

// close waits, for at most closeWithin, until run has returned: its log or the file of its secrets may
// hang. The ctx of run has ended.
func (w *webhook) close() {
	if w != nil {
		_, _ = waiting.Sleep(context.Background(), nil, w.ended, closeWithin)
	}
}

// count returns how many notices are queued or in flight.
func (w *webhook) count() int {
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting) + w.sending
}

// take returns the notices to send now, the time until the next one is due, and how many are then
// in flight. fresh means only those that have not been tried.
func (w *webhook) take(now time.Time, fresh bool) (due []*delivery, next time.Duration, open int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.SortStableFunc(w.waiting, func(a, b *delivery) int { return a.due.Compare(b.due) })
	next = lastPause
	w.waiting = slices.DeleteFunc(w.waiting, func(d *delivery) bool {
		switch {
		case fresh && d.tries > 0:
		case d.due.After(now):
			next = min(next, d.due.Sub(now))
		case w.sending < noticesAtOnce:
			w.sending++
			due = append(due, d)
			return true
		}
		return false
	})
	return due, next, w.sending
}

// send makes one attempt. It logs without the mutex, so that a stalled log blocks no tell.
func (w *webhook) send(ctx context.Context, d *delivery) {
	err := w.post(ctx, d)
	givenUp, changed := w.attempted(d, err)
	nudge(w.wake)
	if givenUp {
		w.s.opts.Log.Error("a notice for the webhook is given up", "id", d.id, "tries", d.tries, "error", err.Error())
	}
	switch {
	case changed && err != nil:
		w.s.opts.Log.Warn("the webhook does not take notices, which are sent again", "error", err.Error())
	case changed:
		w.s.opts.Log.Info("the webhook takes notices again")
	}
}

// attempted records the result of an attempt. It reports whether the notice is given up, and
// whether the result differs from the last attempt's.
func (w *webhook) attempted(d *delivery, err error) (givenUp, changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sending--
	d.tries++
	now := time.Now()
	switch {
	case err == nil:
		w.s.metrics.notices.count(label("outcome", noticeDelivered))
	case now.Sub(d.began) > noticeAge:
		w.s.metrics.notices.count(label("outcome", noticeFailed))
		givenUp = true
	default:
		d.due = now.Add(waiting.Backoff(d.tries-1, firstPause, lastPause))
		w.waiting = append(w.waiting, d)
	}
	failed := err != nil
	changed = failed != w.failing
	w.failing = failed
	return givenUp, changed
}

// post delivers a notice. Its error omits the address, which may contain secrets.
func (w *webhook) post(ctx context.Context, d *delivery) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(d.body))
	if err != nil {
		return errors.New("the address of the webhook cannot be used")
	}
	sent := strconv.FormatInt(time.Now().Unix(), 10)
	h := req.Header
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "leasehold")
	h.Set("Webhook-Id", d.id)
	h.Set("Webhook-Timestamp", sent)
	if w.Secrets != nil {
		h.Set("Webhook-Signature", signatures(w.Secrets(), d.id, sent, d.body))
	}
	resp, err := w.client.Do(req)
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be reused
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("it answered %d", resp.StatusCode)
	}
	return nil
}

// signatures returns the signatures for all secrets.
func signatures(secrets [][]byte, id, sent string, body []byte) string {
	var all []string
	for _, secret := range secrets {
		mac := hmac.New(sha256.New, secret)
		fmt.Fprintf(mac, "%s.%s.%s", id, sent, body)
		all = append(all, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(all, " ")
}
