package natslock

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/caslock"
)

// markerTTL is for how long a key that was removed keeps its revision: far longer than a write
// can be late.
const markerTTL = time.Hour

// spare is how much longer than needed a value stays: a server's clock may jump.
const spare = 24 * time.Hour

// Options configure a Driver. The zero value of each field is its default.
type Options struct {
	caslock.Options

	// ServerClock lets the server end what nobody renews, by its clock: who comes long after
	// a holder has died need not watch it for a TTL. A server whose clock jumps ahead, or a new
	// leader whose clock is ahead, then ends leases early. The bucket needs a LimitMarkerTTL.
	ServerClock bool
}

// A Driver serves claims on a bucket.
type Driver struct {
	*caslock.Driver
	store *store
	own   func() // closes a connection of its own
}

// New returns a Driver on a bucket, which [CreateBucket] makes. It does no I/O.
func New(js jetstream.JetStream, bucket string, opts *Options) (*Driver, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.Engine = cmp.Or(o.Engine, "nats")
	s := &store{js: js, bucket: bucket, serverClock: o.ServerClock}
	cas, err := caslock.New(s, &o.Options)
	if err != nil {
		return nil, err
	}
	return &Driver{Driver: cas, store: s}, nil
}

// CreateBucket makes a bucket for locks, if there is none of that name: with that many replicas,
// on disk, and with markers for what was removed where the server knows them (2.11 and newer).
func CreateBucket(ctx context.Context, js jetstream.JetStream, bucket string, replicas int) error {
	config := jetstream.KeyValueConfig{Bucket: bucket, Replicas: replicas, Storage: jetstream.FileStorage, LimitMarkerTTL: markerTTL}
	_, err := js.CreateKeyValue(ctx, config)
	if errors.Is(err, jetstream.ErrLimitMarkerTTLNotSupported) {
		config.LimitMarkerTTL = 0
		_, err = js.CreateKeyValue(ctx, config)
	}
	if errors.Is(err, jetstream.ErrBucketExists) {
		return nil
	}
	return explain(ctx, err)
}

// Close ends the driver's calls and its watch, and the connection that [OpenURL] made.
func (d *Driver) Close() error {
	err := d.Driver.Close()
	if d.own != nil {
		d.own()
	}
	return err
}
