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

// A bucket describes the store's bucket. It is never changed.
type bucket struct {
	jetstream.KeyValue
	ttls   bool          // it takes a TTL with each value
	past   bool          // it keeps more of a key than the last value
	maxAge time.Duration // it forgets what is older; 0: nothing
	first  bool          // it numbers its messages from 1, as the next one of its name may
	server string        // that alone has it; "": several have, or it is unknown
}

// repeats reports whether a number that was read may belong to another message by now, although the
// connection is the same. That is so if the bucket was created again. It is also so if a single
// server has the bucket, is not the one that is connected to, and came back without its last
// messages.
func (b *bucket) repeats(nc *nats.Conn) bool {
	return b.first || b.server != "" && b.server != nc.ConnectedServerName()
}

// begin begins a call that publishes to a subject, and explain translates its errors. end must
// follow.
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

// within returns when f does, or when ctx ends; then late, if not nil, gets the result of f. While
// the client connects it holds its mutex, so none of its methods returns. With a server that hangs,
// that takes seconds.
func within[T any](ctx context.Context, f func() (T, error), late func(T, error)) (T, error) {
	value, err := abandon.Terms[T]{Late: late}.Call(ctx, f)
	if err != nil && err == ctx.Err() {
		err = explain(ctx, err)
	}
	return value, err
}

// askAfter is when a call without an answer probes the server. Without a leader of the bucket
// nobody answers the call, although the connection works.
const askAfter = 500 * time.Millisecond

// attempt makes one call over the current connection. If the error matches [links.ErrSilent], the
// next call uses another connection.
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

// connected returns when there is a connection. Without one the client would keep its message, and
// publish it after the reconnection, when nobody waits for it.
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

// epoch counts the connections. A server that comes back may have lost its last messages and reuse
// their numbers, so earlier reads prove nothing any more.
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

// unfit returns why a bucket cannot keep locks: somebody else writes to it, or others see another
// bucket.
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

// failed translates the error of a call. The next call looks the bucket up again if it may be
// another one by now.
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
	// firstPatience is how long a question goes unanswered before it is asked again. The time grows
	// to longPatience.
	firstPatience, longPatience = 500 * time.Millisecond, 2 * time.Second
	// mostPatience is longer than an election takes, which is 4 to 10 s on an idle machine.
	mostPatience = time.Minute
)

// insist asks a question that changes nothing. It asks again, with growing pauses, until an answer
// comes or ctx ends, because servers drop questions while they elect a leader.
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
	// missingFor is how long servers of a cluster must say that there is no bucket before it is
	// believed. A new leader, or the only server that has the bucket, says so until it has caught
	// up with its own storage.
	missingFor = 2 * time.Second
	// missingAgain is how often they are asked meanwhile.
	missingAgain = 100 * time.Millisecond
)

// settled asks a question, and repeats it while servers that may not have caught up answer that
// there is no bucket. A single server serves nobody before it has read its storage.
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
	// lookEvery is when, and how often, a call without an answer checks whether it was refused.
	lookEvery = 100 * time.Millisecond
	// looks is how many times it checks; a server refuses at once.
	looks = 50
)

// asking returns a context for a request to a subject, or to subjects that begin with it. It ends
// with ErrAuth if the server refuses the user this subject, or the question for the bucket. The
// server then does not answer, but reports it on the connection. Refusals of other calls do not
// matter.
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

// refuses reports whether an error of the connection concerns the subject, the question for the
// bucket, or hearing answers.
func (s *store) refuses(err error, subject string) bool {
	inbox := cmp.Or(s.js.Conn().Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, "."))
	return errors.Is(err, nats.ErrPermissionViolation) && (strings.Contains(err.Error(), `"`+subject) ||
		strings.Contains(err.Error(), s.api("STREAM.INFO")+`"`) || strings.Contains(err.Error(), `Subscription to "`+inbox+"."))
}

// api is the subject of a call about the bucket, without the account's prefix.
func (s *store) api(call string) string { return call + ".KV_" + s.bucket }

// plain is the characters of a name that stay unescaped beside letters and digits. The key of such
// a name has one token.
const plain = "-_/"

func (s *store) subject(name string) string { return "$KV." + s.bucket + "." + keyOf(name) }

const (
	parted = "\x00" // stands between the parts of a name
	nobody = "="    // is the token of a first part that is empty, and of no name
)

// keyOf returns a key with a token for each part of a name.
func keyOf(name string) string {
	first, second, two := strings.Cut(name, parted)
	if !two {
		return caslock.Escape(name, plain)
	}
	return cmp.Or(caslock.Escape(first, plain), nobody) + "." + caslock.Escape(second, plain)
}

// nameOf reverses keyOf. It reports false for a key that is not ours.
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

// last is the answer to a request for the last message of a subject.
type last struct {
	Error   *jetstream.APIError `json:"error"`
	Message struct {
		Sequence uint64 `json:"seq"`
		Header   []byte `json:"hdrs"`
		Data     []byte `json:"data"`
	} `json:"message"`
}

// Read asks the bucket's leader. The client would ask any replica, which may have missed the last
// write.
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

// itemOfLast decodes the answer to a request for the last message.
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

// prefix returns the beginning of the subjects of calls, with its dot.
func (s *store) prefix() string {
	opts := s.js.Options()
	if opts.Domain != "" {
		return "$JS." + opts.Domain + ".API."
	}
	prefix := cmp.Or(opts.APIPrefix, jetstream.DefaultAPIPrefix)
	return strings.TrimSuffix(prefix, ".") + "."
}

// prefixed returns a subject of the bucket as it is published to. If calls have a prefix, as in
// another domain, so has the subject, because a bucket of the same name may be near.
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

// seed belongs to this process: no version leaves it.
var seed = maphash.MakeSeed()

// version returns the number of a message and of the connection that reported it, with a hash that
// distinguishes its value from others.
func version(sequence, epoch uint64, value []byte) caslock.Version {
	return caslock.Version(fmt.Sprintf("%s%x", heardOf(sequence, epoch), maphash.Bytes(seed, value)))
}

// heardOf is the beginning of the version of a message.
func heardOf(sequence, epoch uint64) string { return fmt.Sprintf("%d@%d#", sequence, epoch) }

// Number returns the sequence of the message, or 0 for none.
func (s *store) Number(v caslock.Version) uint64 {
	number, _, _ := strings.Cut(string(v), "@")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Write publishes to the key if its last message is still the one of was.
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

// unchanged reports whether the number of a version still belongs to the same message, as far as
// can be known before the write. It must come from this connection, and is read once more if that
// does not suffice.
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

// message returns the message that sets the value of a key, or removes it.
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

// publish publishes, and repeats this while another write of the key is in flight. Only when that
// write is decided does a refusal prove that nothing follows.
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
	// firstPause is the duration of an undisturbed write.
	firstPause = 2 * time.Millisecond
	mostPause  = 200 * time.Millisecond
)

// List implements caslock.Store, in the order of the last writes. after is the revision of the last
// item read. Items that are written meanwhile come again.
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

// Watch implements caslock.Watcher. It ends with the connection. Otherwise the client would not
// notice for up to 20 s that a restarted server has forgotten the watch.
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

// errEnded: the client has given up the watch.
var errEnded = errors.New("natslock: the watch has ended")

// all is the pattern of all keys.
const all = ">"

// watch calls heard for each change of some keys until it returns false. more is false once
// everything that existed at first was reported.
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
