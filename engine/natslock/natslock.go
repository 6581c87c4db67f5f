package natslock

import (
	"cmp"
	"context"
	"errors"
	"regexp"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/abandon"
)

// markerTTL is how long a removed key keeps its revision. No write is that late.
const markerTTL = time.Hour

// spare is how much longer than needed the server keeps a record or a place, because its clock may
// jump.
const spare = 24 * time.Hour

// Options configure a Driver. The zero value of each field is its default.
type Options struct {
	caslock.Options

	// ServerClock lets the server's clock expire leases. A process that starts long after a
	// holder's death then need not watch the lease for a TTL. If the server's clock jumps ahead,
	// or a new leader's clock is ahead, leases end early. The bucket needs a LimitMarkerTTL.
	ServerClock bool

	// Monitors are the "host:port" of the servers' monitoring endpoints, over http.
	// [Driver.Check] asks them how often the servers sync their files, which clients cannot see.
	// nil: it does not ask.
	Monitors []string
}

// A Driver serves claims on a bucket.
type Driver struct {
	*caslock.Driver
	store *store
	own   func() // closes the driver's own connection; nil: it has none

	monitors []string // from the Options
}

// New returns a Driver on a bucket, which [CreateBucket] makes. It does no I/O.
func New(js jetstream.JetStream, bucket string, opts *Options) (*Driver, error) {
	o := *cmp.Or(opts, &Options{})
	o.Engine = cmp.Or(o.Engine, "nats")
	s := &store{js: js, bucket: bucket, serverClock: o.ServerClock}
	cas, err := caslock.New(s, &o.Options)
	if err != nil {
		return nil, err
	}
	return &Driver{Driver: cas, store: s, monitors: o.Monitors}, nil
}

// CreateBucket creates a bucket for locks if there is none of that name. The bucket is on disk,
// has the given number of replicas, and keeps markers for removed values if the server supports
// them (2.11 and newer). Its message numbers begin at the microseconds of this machine's clock.
// So a bucket that is created again repeats no fence, and no number that processes know from the
// former one.
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
		AllowRollup: true, DenyDelete: true, AllowDirect: true, // as clients expect it of a bucket
	}
	if account.API.Level >= 1 { // other servers refuse markers
		config.AllowMsgTTL, config.SubjectDeleteMarkerTTL = true, markerTTL
	}
	if _, err = js.CreateStream(ctx, config); errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return nil
	}
	return explain(ctx, err)
}

// bucketName matches the bucket names that clients accept.
var bucketName = regexp.MustCompile("^[a-zA-Z0-9_-]+$")

// Features implements [driver.Driver].
func (d *Driver) Features() driver.Features {
	f := d.Driver.Features()
	f.Keeps = true
	return f
}

// mostClosing bounds how long Close waits for its connection, which nobody can close while the
// client connects.
const mostClosing = time.Second

// Close ends the driver's calls, its watch, and the connection that [OpenURL] made.
func (d *Driver) Close() error {
	err := d.Driver.Close()
	if d.own != nil {
		abandon.Within(mostClosing, d.own)
	}
	return err
}
