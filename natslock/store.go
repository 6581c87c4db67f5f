package natslock

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/caslock"
)

// store is a caslock.Store, Watcher and Counter.
type store struct {
	js          jetstream.JetStream
	bucket      string
	serverClock bool

	mu   sync.Mutex
	kv   jetstream.KeyValue // guarded by mu; nil: nobody has asked yet
	ttls bool               // guarded by mu; the bucket takes a TTL with each value
}

// begin begins a call that publishes to a subject, of which explain tells the errors; end follows.
func (s *store) begin(ctx context.Context, subject string) (_ context.Context, kv jetstream.KeyValue, end func(), err error) {
	ctx, end = s.asking(ctx, subject)
	if kv, err = s.open(ctx); err != nil {
		end()
		return nil, nil, nil, explain(ctx, err)
	}
	return ctx, kv, end, nil
}

// open returns the bucket.
func (s *store) open(ctx context.Context) (jetstream.KeyValue, error) {
	s.mu.Lock()
	kv := s.kv
	s.mu.Unlock()
	if kv != nil {
		return kv, nil
	}
	kv, err := insist(ctx, func(ctx context.Context) (jetstream.KeyValue, error) { return s.js.KeyValue(ctx, s.bucket) })
	if err != nil {
		return nil, err
	}
	status, err := insist(ctx, kv.Status)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kv, s.ttls = kv, status.LimitMarkerTTL() > 0
	return kv, nil
}

const (
	// firstPatience is how long a question is without an answer before it is asked once more.
	firstPatience = 500 * time.Millisecond
	// mostPatience is longer than an election takes, which is 4 to 9 s on an idle machine.
	mostPatience = time.Minute
)

// insist asks a question that changes nothing, and asks again, each time after twice as long, until one
// of them has an answer or ctx ends: servers answer none that comes while they elect a leader.
func insist[T any](ctx context.Context, ask func(ctx context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer)
	begin := func() {
		value, err := ask(ctx)
		select {
		case answers <- answer{value, err}:
		case <-ctx.Done():
		}
	}
	for patience := firstPatience; ; patience *= 2 {
		go begin()
		select {
		case a := <-answers:
			return a.value, a.err
		case <-ctx.Done():
			var none T
			return none, context.Cause(ctx)
		case <-time.After(patience):
		}
	}
}

const (
	// lookEvery is when and how often a call that has no answer looks whether it was refused.
	lookEvery = 100 * time.Millisecond
	// looks is how often; a server refuses at once.
	looks = 50
)

// asking returns a context for a request to a subject, or to one that begins with it, that ends with
// ErrAuth when the server refuses the user that, or to ask for the bucket: it does not answer, but
// tells the connection. What it refuses other calls is no business of this one.
func (s *store) asking(ctx context.Context, subject string) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	nc := s.js.Conn()
	before := nc.LastError()
	look := time.AfterFunc(lookEvery, func() {
		for range looks {
			if err := nc.LastError(); err != before && s.refuses(err, subject) {
				cancel(fmt.Errorf("%w: %w", ErrAuth, err))
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(lookEvery):
			}
		}
	})
	return ctx, func() { look.Stop(); cancel(nil) }
}

// refuses reports whether an error of the connection is one about the subject, or about asking for
// the bucket.
func (s *store) refuses(err error, subject string) bool {
	return errors.Is(err, nats.ErrPermissionViolation) &&
		(strings.Contains(err.Error(), `"`+subject) || strings.Contains(err.Error(), s.api("STREAM.INFO")+`"`))
}

// api is the subject of a call about the bucket, as far as all have it: without the account's prefix.
func (s *store) api(call string) string { return call + ".KV_" + s.bucket }

// plain is what stays of a name beside letters and digits: its key has one token.
const plain = "-_/"

func (s *store) subject(name string) string {
	return "$KV." + s.bucket + "." + caslock.Escape(name, plain)
}

// last is the answer to a question for the last message of a subject.
type last struct {
	Error   *jetstream.APIError `json:"error"`
	Message struct {
		Sequence uint64 `json:"seq"`
		Header   []byte `json:"hdrs"`
		Data     []byte `json:"data"`
	} `json:"message"`
}

// Read asks the bucket's leader: the client would ask any replica, which may not have heard of the
// last write.
func (s *store) Read(ctx context.Context, name string) (caslock.Item, error) {
	prefix := s.prefix()
	ctx, _, end, err := s.begin(ctx, prefix+s.api("STREAM.MSG.GET")+`"`)
	if err != nil {
		return caslock.Item{}, err
	}
	defer end()
	question, err := json.Marshal(map[string]string{"last_by_subj": s.subject(name)})
	if err != nil {
		return caslock.Item{}, err
	}
	msg, err := insist(ctx, func(ctx context.Context) (*nats.Msg, error) {
		return s.js.Conn().RequestWithContext(ctx, prefix+s.api("STREAM.MSG.GET"), question)
	})
	if err != nil {
		return caslock.Item{}, explain(ctx, err)
	}
	i, err := itemOfLast(msg.Data)
	if err != nil {
		return caslock.Item{}, explain(ctx, err)
	}
	return i, nil
}

// itemOfLast reads the answer to a question for the last message.
func itemOfLast(answer []byte) (caslock.Item, error) {
	var found last
	if err := json.Unmarshal(answer, &found); err != nil {
		return caslock.Item{}, err
	}
	const none = 10037
	switch {
	case found.Error != nil && found.Error.ErrorCode == none:
		return caslock.Item{}, nil
	case found.Error != nil:
		return caslock.Item{}, found.Error
	}
	i := caslock.Item{Version: version(found.Message.Sequence)}
	if header, err := nats.DecodeHeadersMsg(found.Message.Header); len(found.Message.Header) == 0 || err == nil && !removed(header) {
		i.Value = found.Message.Data
	}
	return i, nil
}

// prefix is what the subjects of calls begin with, dot included.
func (s *store) prefix() string {
	prefix := cmp.Or(s.js.Options().APIPrefix, jetstream.DefaultAPIPrefix)
	return strings.TrimSuffix(prefix, ".") + "."
}

// removed reports whether a message marks the end of a key.
func removed(h nats.Header) bool {
	return h.Get("KV-Operation") != "" || h.Get("Nats-Marker-Reason") != ""
}

func version(sequence uint64) caslock.Version {
	return caslock.Version(strconv.FormatUint(sequence, 10))
}

// Number is the sequence of the message, 0 for none.
func (s *store) Number(v caslock.Version) uint64 {
	n, err := strconv.ParseUint(string(v), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Write publishes to the key if its last message is still that of was.
func (s *store) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	ctx, _, end, err := s.begin(ctx, s.subject(name)+`"`)
	if err != nil {
		return "", err
	}
	defer end()
	msg := nats.NewMsg(s.subject(name))
	msg.Data = value
	opts := []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(s.Number(was))}
	if value == nil {
		msg.Header.Set("KV-Operation", "DEL")
		life = markerTTL
	} else if life > 0 && !s.serverClock {
		life += spare
	}
	s.mu.Lock()
	ttls := s.ttls
	s.mu.Unlock()
	if life > 0 && ttls {
		opts = append(opts, jetstream.WithMsgTTL((life+time.Second-1)/time.Second*time.Second))
	}
	ack, err := s.js.PublishMsg(ctx, msg, opts...)
	if err != nil {
		return "", explain(ctx, err)
	}
	return version(ack.Sequence), nil
}

// List reads the values that the bucket has now.
func (s *store) List(ctx context.Context, prefix string) iter.Seq2[caslock.Item, error] {
	return func(yield func(caslock.Item, error) bool) {
		err := s.watch(ctx, func() {}, func(i caslock.Item, more bool) bool {
			return more && (!strings.HasPrefix(i.Name, prefix) || yield(i, nil))
		}, jetstream.IgnoreDeletes())
		if err != nil {
			yield(caslock.Item{}, err)
		}
	}
}

// Watch implements caslock.Watcher.
func (s *store) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	return s.watch(ctx, begun, func(i caslock.Item, more bool) bool {
		if more {
			heard(i)
		}
		return true
	}, jetstream.UpdatesOnly())
}

// errEnded: the client has given the watch up.
var errEnded = errors.New("natslock: the watch has ended")

// watch calls heard for each change until it returns false; more is false once all is told that
// was there at first.
func (s *store) watch(ctx context.Context, begun func(), heard func(i caslock.Item, more bool) bool, opt jetstream.WatchOpt) error {
	ctx, kv, end, err := s.begin(ctx, s.prefix()+s.api("CONSUMER.CREATE")+".")
	if err != nil {
		return err
	}
	defer end()
	w, err := kv.WatchAll(ctx, opt)
	if err != nil {
		return explain(ctx, err)
	}
	defer func() { _ = w.Stop() }() // of a connection that is closed
	begun()
	for {
		select {
		case <-ctx.Done():
			return explain(ctx, context.Cause(ctx))
		case entry, ok := <-w.Updates():
			if !ok {
				return errEnded
			}
			var i caslock.Item
			if entry != nil {
				if i, ok = itemOf(entry); !ok {
					continue // no key of ours
				}
			}
			if !heard(i, entry != nil) {
				return nil
			}
		}
	}
}

func itemOf(entry jetstream.KeyValueEntry) (i caslock.Item, ok bool) {
	i.Name, ok = caslock.Unescape(entry.Key(), plain)
	i.Version = version(entry.Revision())
	if entry.Operation() == jetstream.KeyValuePut {
		i.Value = entry.Value()
	}
	return i, ok
}
