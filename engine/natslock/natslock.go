package natslock

import (
	"cmp"
	"context"
	"errors"
	"regexp"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/abandon"
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

	// Monitors are "host:port" of the servers' monitoring, over http. [Driver.Check] asks there how often
	// they sync their files, which they tell no client. nil: nobody is asked.
	Monitors []string
}

// A Driver serves claims on a bucket.
type Driver struct {
	*caslock.Driver
	store *store
	own   func() // closes a connection of its own

	monitors []string // of the Options
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
	return &Driver{Driver: cas, store: s, monitors: o.Monitors}, nil
}

// CreateBucket makes a bucket for locks, if there is none of that name: with that many replicas,
// on disk, and with markers for what was removed where the server knows them (2.11 and newer). It
// numbers its messages from the microseconds of this machine's clock on, so that one which is made
// anew repeats no fence, and no number by which a process knows what it has seen of the former one.
func CreateBucket(ctx context.Context, js jetstream.JetStream, bucket string, replicas int) error {
	account, err := js.AccountInfo(ctx)
	if err != nil {
		return explain(ctx, err)
	}
	if !bucketName.MatchString(bucket) {
		return explain(ctx, jetstream.ErrInvalidBucketName)
	}
	config := jetstream.StreamConfig{
		Name: "KV_" + bucket, Subjects: []string{"$KV." + bucket + ".>"}, Replicas: replicas, Storage: jetstream.FileStorage,
		FirstSeq: uint64(time.Now().UnixMicro()), MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew,
		MaxMsgs: -1, MaxBytes: -1, MaxMsgSize: -1, MaxConsumers: -1,
		AllowRollup: true, DenyDelete: true, AllowDirect: true, // as clients expect of a bucket
	}
	if account.API.Level >= 1 { // else the server refuses markers
		config.AllowMsgTTL, config.SubjectDeleteMarkerTTL = true, markerTTL
	}
	if _, err = js.CreateStream(ctx, config); errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return nil
	}
	return explain(ctx, err)
}

// bucketName is what clients take for the name of a bucket.
var bucketName = regexp.MustCompile("^[a-zA-Z0-9_-]+$")

// mostClosing is how long Close waits for its connection: while the client connects, nobody can close it.
const mostClosing = time.Second

// Close ends the driver's calls and its watch, and the connection that [OpenURL] made.
func (d *Driver) Close() error {
	err := d.Driver.Close()
	if d.own != nil {
		ctx, cancel := context.WithTimeout(context.Background(), mostClosing)
		defer cancel()
		_, _ = abandon.Call(ctx, func() (struct{}, error) { d.own(); return struct{}{}, nil })
	}
	return err
}
