package s3lock

import (
	"cmp"
	"errors"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leasehold-go/leasehold/engine/caslock"
)

// Options configure a Driver. The zero value of each field is its default. The default of MinTTL
// is 1 s, of Place 8 s and of Poll 500 ms, because each put and each get costs money.
type Options struct {
	caslock.Options

	// Prefix begins the keys of all objects; "": "leasehold/". All processes must use the same.
	Prefix string
}

// A Driver serves claims on the objects of a bucket.
type Driver struct {
	*caslock.Driver
	store *store
}

// New returns a Driver on a bucket, which must exist. New does no I/O, and Close does not close
// client. client may retry requests, as it does by default.
func New(client *s3.Client, bucket string, opts *Options) (*Driver, error) {
	o := *cmp.Or(opts, &Options{})
	o.Engine, o.Prefix = cmp.Or(o.Engine, "s3"), cmp.Or(o.Prefix, "leasehold/")
	o.MinTTL, o.Place, o.Poll = cmp.Or(o.MinTTL, time.Second), cmp.Or(o.Place, 8*time.Second), cmp.Or(o.Poll, 500*time.Millisecond)
	if bucket == "" || len(o.Prefix) > maxPrefix || strings.HasPrefix(o.Prefix, "/") {
		return nil, errors.New("s3lock: a bucket has a name, and a prefix at most 200 bytes and no slash before it")
	}
	s := &store{client: client, bucket: bucket, prefix: o.Prefix}
	cas, err := caslock.New(s, &o.Options)
	if err != nil {
		return nil, err
	}
	return &Driver{cas, s}, nil
}
