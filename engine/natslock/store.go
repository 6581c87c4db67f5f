package natslock

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/pause"
)

// store is a caslock.Queuer.
type store struct {
	js          jetstream.JetStream
	bucket      string
	serverClock bool
	links       *links.Links // of the driver's own connection; nil: the caller's

	mu sync.Mutex
	of *bucket // guarded by mu; nil: unknown
}

// epoch counts the connections. A server that comes back may have lost its last messages and reuse
// their numbers. So what was read over an earlier connection proves nothing any more.
func (s *store) epoch() uint64 { return s.js.Conn().Stats().Reconnects }

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
	return attempt(ctx, s, func(ctx context.Context) (caslock.Item, error) { return s.read(ctx, keyOf(name)) })
}

// read returns the last message of a key, or of all keys that match a pattern.
func (s *store) read(ctx context.Context, keys string) (caslock.Item, error) {
	prefix := s.prefix()
	ctx, _, end, err := s.begin(ctx, prefix+s.api("STREAM.MSG.GET")+`"`)
	if err != nil {
		return caslock.Item{}, err
	}
	defer end()
	question, err := json.Marshal(map[string]string{"last_by_subj": s.subject(keys)})
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
	switch {
	case found.Error != nil && found.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
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

// removed reports whether a message marks the end of a key.
func removed(h nats.Header) bool {
	return h.Get("KV-Operation") != "" || h.Get("Nats-Marker-Reason") != ""
}

// seed differs in each process, because versions never leave a process.
var seed = maphash.MakeSeed()

// version returns the number of a message and of the connection that reported it, with a hash that
// distinguishes its value from others.
func version(sequence, epoch uint64, value []byte) caslock.Version {
	return caslock.Version(fmt.Sprintf("%s%x", heardOf(sequence, epoch), maphash.Bytes(seed, value)))
}

// heardOf returns the beginning of the version of a message.
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

// Write publishes a value of the key if the last message of the key is still that of was.
func (s *store) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	return attempt(ctx, s, func(ctx context.Context) (caslock.Version, error) { return s.write(ctx, name, value, was, life) })
}

func (s *store) write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	ctx, b, end, err := s.begin(ctx, s.prefixed(s.subject(keyOf(name)))+`"`)
	if err != nil {
		return "", fmt.Errorf("%w: %w", caslock.ErrUnsent, err)
	}
	defer end()
	if strings.Contains(name, parted) && !b.ttls {
		return "", fmt.Errorf("natslock: %w: the bucket has no markers, so that each place would leave something for ever", driver.ErrUnsupported)
	}
	msg, err := b.message(s.prefixed(s.subject(keyOf(name))), name, value, life, s.serverClock)
	if err != nil {
		return "", err
	}
	return within(ctx, func() (caslock.Version, error) {
		epoch, number := s.epoch(), s.Number(was)
		if was != "" && !s.unchanged(ctx, b, name, was, heardOf(number, epoch)) {
			return "", caslock.ErrUnsent
		}
		ack, err := s.publish(ctx, msg, number)
		if err != nil {
			return "", s.failed(ctx, err)
		}
		return version(ack.Sequence, epoch, value), nil
	}, nil)
}

// unchanged reports whether the number of a version still belongs to the same message, as far as
// can be known before the write. The version must be from this connection. If that does not
// suffice, unchanged reads the key once more.
func (s *store) unchanged(ctx context.Context, b *bucket, name string, was caslock.Version, heard string) bool {
	if !strings.HasPrefix(string(was), heard) {
		return false
	}
	if !b.repeats(s.js.Conn()) {
		return true
	}
	now, err := s.read(ctx, keyOf(name))
	return err == nil && now.Version == was
}

// message returns the message that sets the value of a name, or removes it.
func (b *bucket) message(subject, name string, value []byte, life time.Duration, serverClock bool) (*nats.Msg, error) {
	msg := nats.NewMsg(subject)
	msg.Data = value
	if b.past { // otherwise the previous value returns when this one expires
		msg.Header.Set("Nats-Rollup", "sub")
	}
	switch {
	case value == nil && life > 0: // a place: unlike a deletion, this leaves nothing when its time is over
		msg.Header.Set("KV-Operation", "PURGE")
	case value == nil:
		msg.Header.Set("KV-Operation", "DEL")
		life = markerTTL
	case b.maxAge > 0 && (life == 0 || life > b.maxAge):
		return nil, fmt.Errorf("natslock: %w: the bucket forgets after %v what is to last for longer", driver.ErrUnsupported, b.maxAge)
	case life > 0 && !serverClock && !strings.HasPrefix(name, parted): // heartbeats decide only the order
		life += spare
	}
	if life > 0 && b.ttls {
		msg.Header.Set(jetstream.MsgTTLHeader, ((life + time.Second - 1) / time.Second * time.Second).String())
	}
	return msg, nil
}

// publish publishes a message for a key whose last message has that number. It repeats this while
// another write of the key is in flight, because a refusal proves that nothing follows only when that
// write is decided.
func (s *store) publish(ctx context.Context, msg *nats.Msg, last uint64) (*jetstream.PubAck, error) {
	for most := firstPause; ; most = min(2*most, mostPause) {
		ack, err := s.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(last))
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
