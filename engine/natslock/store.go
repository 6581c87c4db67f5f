package natslock

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/links"
)

// store is a caslock.Queuer.
type store struct {
	js          jetstream.JetStream
	bucket      string
	serverClock bool
	links       *links.Links // of a connection of our own; else nil

	mu sync.Mutex
	of *bucket // guarded by mu; nil: it is to be asked for
}

// A bucket is what is known of the store's. It is never changed.
type bucket struct {
	jetstream.KeyValue
	ttls   bool          // it takes a TTL with each value
	past   bool          // it keeps more of a key than the last value
	maxAge time.Duration // it forgets what is older; 0: nothing
	first  bool          // it numbers its messages from 1, as the next one of its name may
	server string        // that alone has it; "": several have, or it is unknown
}

// repeats reports whether a number that was read may be another message's by now though the connection is the
// same: the bucket was made anew, or the only server that has it, which is not the one that is connected to, came back
// without its last messages.
func (b *bucket) repeats(nc *nats.Conn) bool {
	return b.first || b.server != "" && b.server != nc.ConnectedServerName()
}

// begin begins a call that publishes to a subject, of which explain tells the errors; end follows.
func (s *store) begin(ctx context.Context, subject string) (_ context.Context, b *bucket, end func(), err error) {
	type begun struct {
		ctx context.Context
		b   *bucket
		end func()
	}
	one, err := within(ctx, func() (one begun, err error) {
		one.ctx, one.end = s.asking(ctx, subject)
		if err = s.connected(one.ctx); err == nil {
			one.b, err = s.open(one.ctx)
		}
		if err != nil {
			one.end()
		}
		return one, explain(one.ctx, err)
	}, func(late begun, _ error) { late.end() })
	if err != nil {
		return nil, nil, nil, err
	}
	return one.ctx, one.b, one.end, nil
}

// within returns when f does, or ctx ends; then late, if not nil, gets what f returns. While the client connects it
// has its mutex, so that none of its methods returns, and a server that hangs makes that seconds.
func within[T any](ctx context.Context, f func() (T, error), late func(T, error)) (T, error) {
	value, err := abandon.Terms[T]{Late: late}.Call(ctx, f)
	if err != nil && err == ctx.Err() {
		err = explain(ctx, err)
	}
	return value, err
}

// askAfter is when a call without an answer asks the server for a sign of life: without a leader of the bucket nobody
// answers the call, though the connection stands.
const askAfter = 500 * time.Millisecond

// attempt makes one call over the connection that there is. An error that matches [links.ErrSilent] says that
// another call goes over another one.
func attempt[T any](ctx context.Context, s *store, call func(ctx context.Context) (T, error)) (T, error) {
	if s.links == nil {
		return call(ctx)
	}
	ctx, waits := s.links.Begin(ctx)
	ask := time.AfterFunc(askAfter, func() { _ = s.js.Conn().FlushTimeout(askAfter) }) // that it was answered shows on the connection
	defer ask.Stop()
	value, err := call(ctx)
	return value, waits.End(err)
}

// connected returns when there is a connection. Without one the client would keep what it is to
// publish, and do it whenever it is back, when nobody knows of it any more.
func (s *store) connected(ctx context.Context) error {
	nc := s.js.Conn()
	if nc.IsConnected() {
		return nil
	}
	changed := nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer nc.RemoveStatusListener(changed)
	for !nc.IsConnected() {
		if nc.IsClosed() {
			return nats.ErrConnectionClosed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// epoch counts the connections. A server that comes back may have lost its last messages, and give their
// numbers to others: what was read before says nothing any more.
func (s *store) epoch() uint64 { return s.js.Conn().Stats().Reconnects }

// open returns the bucket.
func (s *store) open(ctx context.Context) (*bucket, error) {
	s.mu.Lock()
	b := s.of
	s.mu.Unlock()
	if b != nil {
		return b, nil
	}
	kv, err := settled(ctx, s, func() (jetstream.KeyValue, error) {
		return insist(ctx, func(ctx context.Context) (jetstream.KeyValue, error) { return s.js.KeyValue(ctx, s.bucket) })
	})
	if err != nil {
		return nil, err
	}
	status, err := insist(ctx, kv.Status)
	if err != nil {
		return nil, err
	}
	b = &bucket{KeyValue: kv, ttls: status.LimitMarkerTTL() > 0, past: status.History() != 1, maxAge: status.TTL()}
	if status, ok := status.(*jetstream.KeyValueBucketStatus); ok {
		info := status.StreamInfo()
		if err := unfit(s.js.Conn(), info); err != nil {
			return nil, err
		}
		b.first = info.Config.FirstSeq <= 1
		if info.Config.Replicas == 1 && info.Cluster != nil {
			b.server = info.Cluster.Leader
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of = b
	return b, nil
}

// unfit is why no lock can be kept in a bucket: somebody else writes to it, or it is another one for others.
func unfit(nc *nats.Conn, info *jetstream.StreamInfo) error {
	if c := &info.Config; len(c.Sources) > 0 || c.Mirror != nil || c.SubjectTransform != nil {
		return fmt.Errorf("natslock: %w: the bucket has a source, a mirror or a subject transform: what is written elsewhere replaces its values", driver.ErrUnsupported)
	}
	c := info.Cluster
	if hosts := len(nc.Opts.Servers); hosts > 1 && c != nil && c.Name == "" && c.Leader == nc.ConnectedServerName() {
		return fmt.Errorf("natslock: %w: %d servers are named, and %q, which has the bucket, is in no cluster: the others may have a bucket each",
			driver.ErrUnsupported, hosts, c.Leader)
	}
	return nil
}

// failed explains what a call came to. The bucket is asked for anew if it may be another one by now.
func (s *store) failed(ctx context.Context, err error) error {
	means := explain(ctx, err)
	if answered(err) && !errors.Is(means, caslock.ErrChanged) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.of = nil
	}
	return means
}

const (
	// firstPatience is how long a question is without an answer before it is asked once more, longPatience
	// the most that this grows to.
	firstPatience, longPatience = 500 * time.Millisecond, 2 * time.Second
	// mostPatience is longer than an election takes, which is 4 to 10 s on an idle machine.
	mostPatience = time.Minute
)

// insist asks a question that changes nothing, and asks again, with pauses that grow, until one
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
	for patience := firstPatience; ; patience = min(2*patience, longPatience) {
		go begin()
		select {
		case a := <-answers:
			return a.value, a.err
		case <-ctx.Done():
			var none T
			return none, ctx.Err()
		case <-time.After(patience):
		}
	}
}

const (
	// missingFor is for how long servers of a cluster must say that there is no bucket before it is believed: one
	// that has just begun to lead the others, or that has the bucket alone, says so until it has caught up with
	// what it stores itself.
	missingFor = 2 * time.Second
	// missingAgain is how often they are asked meanwhile.
	missingAgain = 100 * time.Millisecond
)

// settled asks a question, and again while servers that may not have caught up answer that there is no bucket. A
// server that is alone serves nobody before it has read all that it stores.
func settled[T any](ctx context.Context, s *store, ask func() (T, error)) (T, error) {
	for start := time.Now(); ; {
		value, err := ask()
		if !isMissing(err) || s.js.Conn().ConnectedClusterName() == "" || time.Since(start) > missingFor {
			return value, err
		}
		if pause.For(ctx, missingAgain) != nil {
			return value, err
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
			if pause.For(ctx, lookEvery) != nil {
				return
			}
		}
	})
	return ctx, func() { look.Stop(); cancel(nil) }
}

// refuses reports whether an error of the connection is one about the subject, about asking for the
// bucket, or about hearing answers.
func (s *store) refuses(err error, subject string) bool {
	inbox := cmp.Or(s.js.Conn().Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, "."))
	return errors.Is(err, nats.ErrPermissionViolation) && (strings.Contains(err.Error(), `"`+subject) ||
		strings.Contains(err.Error(), s.api("STREAM.INFO")+`"`) || strings.Contains(err.Error(), `Subscription to "`+inbox+"."))
}

// api is the subject of a call about the bucket, as far as all have it: without the account's prefix.
func (s *store) api(call string) string { return call + ".KV_" + s.bucket }

// plain is what stays of a name beside letters and digits: its key has one token.
const plain = "-_/"

func (s *store) subject(name string) string { return "$KV." + s.bucket + "." + keyOf(name) }

const (
	parted = "\x00" // stands between the parts of a name
	nobody = "="    // is the token of a first part that is empty, and of no name
)

// keyOf is a token for each part of a name.
func keyOf(name string) string {
	first, second, two := strings.Cut(name, parted)
	if !two {
		return caslock.Escape(name, plain)
	}
	return cmp.Or(caslock.Escape(first, plain), nobody) + "." + caslock.Escape(second, plain)
}

// nameOf is the reverse of keyOf; false: it is no key of ours.
func nameOf(key string) (name string, ok bool) {
	first, second, two := strings.Cut(key, ".")
	switch {
	case !two:
		return caslock.Unescape(key, plain)
	case first != nobody:
		name, ok = caslock.Unescape(first, plain)
		ok = ok && name != ""
	default:
		ok = true
	}
	rest, also := caslock.Unescape(second, plain)
	return name + parted + rest, ok && also
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
	return attempt(ctx, s, func(ctx context.Context) (caslock.Item, error) { return s.read(ctx, name) })
}

func (s *store) read(ctx context.Context, name string) (caslock.Item, error) {
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
	i, err := settled(ctx, s, func() (caslock.Item, error) {
		epoch := s.epoch()
		msg, err := insist(ctx, func(ctx context.Context) (*nats.Msg, error) {
			return s.js.Conn().RequestWithContext(ctx, prefix+s.api("STREAM.MSG.GET"), question)
		})
		if err != nil {
			return caslock.Item{}, err
		}
		return itemOfLast(msg.Data, epoch)
	})
	if err != nil {
		return caslock.Item{}, s.failed(ctx, err)
	}
	return i, nil
}

// itemOfLast reads the answer to a question for the last message.
func itemOfLast(answer []byte, epoch uint64) (caslock.Item, error) {
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
	var i caslock.Item
	if header, err := nats.DecodeHeadersMsg(found.Message.Header); len(found.Message.Header) == 0 || err == nil && !removed(header) {
		i.Value = found.Message.Data
	}
	i.Version = version(found.Message.Sequence, epoch, i.Value)
	return i, nil
}

// prefix is what the subjects of calls begin with, dot included.
func (s *store) prefix() string {
	opts := s.js.Options()
	if opts.Domain != "" {
		return "$JS." + opts.Domain + ".API."
	}
	prefix := cmp.Or(opts.APIPrefix, jetstream.DefaultAPIPrefix)
	return strings.TrimSuffix(prefix, ".") + "."
}

// prefixed is a subject of the bucket as it is published to: where calls have a prefix of their own, as
// in another domain, so has it, as a bucket of the same name may be near.
func (s *store) prefixed(subject string) string {
	if prefix := s.prefix(); prefix != jetstream.DefaultAPIPrefix {
		return prefix + subject
	}
	return subject
}

// removed reports whether a message marks the end of a key.
func removed(h nats.Header) bool {
	return h.Get("KV-Operation") != "" || h.Get("Nats-Marker-Reason") != ""
}

// seed is this process' own: no version leaves it.
var seed = maphash.MakeSeed()

// version is the number of a message and of the connection by which it was heard of, and what tells its value from
// others.
func version(sequence, epoch uint64, value []byte) caslock.Version {
	return caslock.Version(fmt.Sprintf("%s%x", heardOf(sequence, epoch), maphash.Bytes(seed, value)))
}

// heardOf is what the version of a message begins with.
func heardOf(sequence, epoch uint64) string { return fmt.Sprintf("%d@%d#", sequence, epoch) }

// Number is the sequence of the message, 0 for none.
func (s *store) Number(v caslock.Version) uint64 {
	number, _, _ := strings.Cut(string(v), "@")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Write publishes to the key if its last message is still that of was.
func (s *store) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	return attempt(ctx, s, func(ctx context.Context) (caslock.Version, error) { return s.write(ctx, name, value, was, life) })
}

func (s *store) write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	ctx, b, end, err := s.begin(ctx, s.prefixed(s.subject(name))+`"`)
	if err != nil {
		return "", fmt.Errorf("%w: %w", caslock.ErrUnsent, err)
	}
	defer end()
	if strings.Contains(name, parted) && !b.ttls {
		return "", fmt.Errorf("natslock: %w: the bucket has no markers, so that each place would leave something for ever", driver.ErrUnsupported)
	}
	msg, err := b.message(s.prefixed(s.subject(name)), value, life, s.serverClock)
	if err != nil {
		return "", err
	}
	return within(ctx, func() (caslock.Version, error) {
		epoch, number := s.epoch(), s.Number(was)
		if was != "" && !s.unchanged(ctx, b, name, was, heardOf(number, epoch)) {
			return "", caslock.ErrUnsent
		}
		ack, err := s.publish(ctx, msg, []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(number)})
		if err != nil {
			return "", s.failed(ctx, err)
		}
		return version(ack.Sequence, epoch, value), nil
	}, nil)
}

// unchanged reports whether the number of a version is no other message's by now, as far as can be known before the
// write: it was heard of by this connection and, where that does not suffice, it is read once more.
func (s *store) unchanged(ctx context.Context, b *bucket, name string, was caslock.Version, heard string) bool {
	if !strings.HasPrefix(string(was), heard) {
		return false
	}
	if !b.repeats(s.js.Conn()) {
		return true
	}
	now, err := s.read(ctx, name)
	return err == nil && now.Version == was
}

// message is what sets the value of a key, or removes it.
func (b *bucket) message(subject string, value []byte, life time.Duration, serverClock bool) (*nats.Msg, error) {
	msg := nats.NewMsg(subject)
	msg.Data = value
	if b.past { // else a former value is the key's again when the last one ends
		msg.Header.Set("Nats-Rollup", "sub")
	}
	switch {
	case value == nil && life > 0: // of a place: it leaves nothing when its time is over, as a deletion would
		msg.Header.Set("KV-Operation", "PURGE")
	case value == nil:
		msg.Header.Set("KV-Operation", "DEL")
		life = markerTTL
	case b.maxAge > 0 && (life == 0 || life > b.maxAge):
		return nil, fmt.Errorf("natslock: %w: the bucket forgets after %v what is to last for longer", driver.ErrUnsupported, b.maxAge)
	case life > 0 && !serverClock:
		life += spare
	}
	if life > 0 && b.ttls {
		msg.Header.Set(jetstream.MsgTTLHeader, ((life + time.Second - 1) / time.Second * time.Second).String())
	}
	return msg, nil
}

// publish publishes, and again for as long as another write of the key is in flight: only when that is
// decided a refusal says that nothing comes after it.
func (s *store) publish(ctx context.Context, msg *nats.Msg, opts []jetstream.PublishOpt) (*jetstream.PubAck, error) {
	for most := firstPause; ; most = min(2*most, mostPause) {
		ack, err := s.js.PublishMsg(ctx, msg, opts...)
		if !inFlight(err) {
			return ack, err
		}
		if pause.For(ctx, rand.N(most)+time.Microsecond) != nil {
			return nil, err
		}
	}
}

const (
	// firstPause is as long as a write takes that nothing is in the way of.
	firstPause = 2 * time.Millisecond
	mostPause  = 200 * time.Millisecond
)

// List implements caslock.Store, in the order of the last writes: after is the revision of the last item
// that was read. What is written meanwhile comes again.
func (s *store) List(ctx context.Context, prefix, after string, limit int) (items []caslock.Listed, next string, err error) {
	from, err := uint64(0), error(nil)
	if after != "" {
		if from, err = strconv.ParseUint(after, 10, 64); err != nil {
			return nil, "", fmt.Errorf("natslock: no revision to go on after: %w", err)
		}
	}
	err = s.watch(ctx, "*", func() {}, func(i caslock.Item, more bool) bool {
		if !more || !strings.HasPrefix(i.Name, prefix) {
			return more
		}
		if len(items) == limit {
			next = strconv.FormatUint(s.Number(items[limit-1].Version), 10)
			return false
		}
		items = append(items, caslock.Listed{Item: i})
		return true
	}, jetstream.IgnoreDeletes(), jetstream.ResumeFromRevision(from+1))
	if err != nil {
		return nil, "", err
	}
	return items, next, nil
}

// Beside implements caslock.Queuer.
func (s *store) Beside(ctx context.Context, first string) iter.Seq2[caslock.Item, error] {
	return func(yield func(caslock.Item, error) bool) {
		keys := cmp.Or(caslock.Escape(first, plain), nobody) + ".*"
		err := s.watch(ctx, keys, func() {}, func(i caslock.Item, more bool) bool { return more && yield(i, nil) }, jetstream.IgnoreDeletes())
		if err != nil {
			yield(caslock.Item{}, err)
		}
	}
}

// Watch implements caslock.Watcher. It ends with the connection: after that the client would not
// notice for up to 20 s that a server which restarted has forgotten the watch.
func (s *store) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	epoch := s.epoch()
	changed := s.js.Conn().StatusChanged(nats.CONNECTED)
	ctx, end := context.WithCancel(ctx)
	defer end()
	context.AfterFunc(ctx, func() { s.js.Conn().RemoveStatusListener(changed) }) // which waits while the client connects
	go func() {
		for range changed { // until it is removed
			if s.epoch() != epoch {
				end()
			}
		}
	}()
	return s.watch(ctx, all, begun, func(i caslock.Item, more bool) bool {
		if more {
			heard(i)
		}
		return s.epoch() == epoch
	}, jetstream.UpdatesOnly())
}

// errEnded: the client has given the watch up.
var errEnded = errors.New("natslock: the watch has ended")

// all is the pattern of all keys.
const all = ">"

// watch calls heard for each change of some keys until it returns false; more is false once all is told that
// was there at first.
func (s *store) watch(ctx context.Context, keys string, begun func(), heard func(i caslock.Item, more bool) bool, opts ...jetstream.WatchOpt) error {
	ctx, kv, end, err := s.begin(ctx, s.prefix()+s.api("CONSUMER.CREATE")+".")
	if err != nil {
		return err
	}
	defer end()
	epoch := s.epoch()
	w, err := within(ctx, func() (jetstream.KeyWatcher, error) {
		w, err := settled(ctx, s, func() (jetstream.KeyWatcher, error) { return kv.Watch(ctx, keys, opts...) })
		if err == nil {
			context.AfterFunc(ctx, func() { _ = w.Stop() }) // of a connection that is closed; nobody waits for it
		}
		return w, err
	}, nil)
	if err != nil {
		return s.failed(ctx, err)
	}
	begun()
	for {
		select {
		case <-ctx.Done():
			return explain(ctx, ctx.Err())
		case entry, ok := <-w.Updates():
			if !ok {
				return errEnded
			}
			var i caslock.Item
			if entry != nil {
				if i, ok = itemOf(entry, epoch); !ok {
					continue // no key of ours
				}
			}
			if !heard(i, entry != nil) {
				return nil
			}
		}
	}
}

func itemOf(entry jetstream.KeyValueEntry, epoch uint64) (i caslock.Item, ok bool) {
	i.Name, ok = nameOf(entry.Key())
	if entry.Operation() == jetstream.KeyValuePut {
		i.Value = entry.Value()
	}
	i.Version = version(entry.Revision(), epoch, i.Value)
	return i, ok
}
