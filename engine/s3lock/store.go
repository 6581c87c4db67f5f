package s3lock

import (
	"bytes"
	"context"
	"crypto/fips140"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/several"
)

// maxValue is the largest object that is read. An object of a thousand claims with the longest
// notes is smaller.
const maxValue = 16 << 20

// store is a caslock.Store.
type store struct {
	client         *s3.Client
	links          *links.Links // of the driver's own client; nil: the caller's
	bucket, prefix string
	proved         atomic.Bool // the store is known to respect conditions
	opaque         atomic.Bool // its ETags are no digests; known once proved
}

// Read implements caslock.Store.
func (s *store) Read(ctx context.Context, name string) (caslock.Item, error) {
	i, err := s.read(ctx, s.prefix+keyOf(name))
	if i.Name = name; errors.Is(err, driver.ErrCorrupt) {
		err = fmt.Errorf("s3lock: object of %q: %w", name, err)
	}
	return i, err
}

// read returns an object as it is stored.
func (s *store) read(ctx context.Context, key string) (caslock.Item, error) {
	ctx, attempt := s.links.Begin(ctx)
	i, err := s.get(ctx, key)
	return i, attempt.End(err)
}

func (s *store) get(ctx context.Context, key string) (caslock.Item, error) {
	out, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: &key})
	if version, yes := deleted(err); yes {
		return caslock.Item{}, fmt.Errorf("%w: bucket %s, key %s, version of the marker %s", ErrDeleted, s.bucket, key, version)
	}
	if isCode(err, "NoSuchKey") {
		return caslock.Item{}, nil
	}
	if err != nil {
		return caslock.Item{}, explain(err)
	}
	defer out.Body.Close()
	value, err := io.ReadAll(io.LimitReader(out.Body, maxValue+1))
	switch {
	case err != nil:
		return caslock.Item{}, explain(err)
	case len(value) > maxValue || aws.ToString(out.ETag) == "":
		return caslock.Item{}, fmt.Errorf("%w: it is too large, or has no ETag", driver.ErrCorrupt)
	case len(value) == 0:
		return caslock.Item{}, fmt.Errorf("%w: it is empty", driver.ErrCorrupt)
	}
	version := *out.ETag
	if !s.fits(version, value, out.ServerSideEncryption, out.SSECustomerAlgorithm) {
		version = torn + version
	}
	return caslock.Item{Value: value, Version: caslock.Version(version)}, nil
}

// torn begins the version of an object that was read with an ETag that is not the digest of its
// content. If the store's ETags are digests, content and ETag belong to different objects, and
// nothing may be written on top.
const torn = "torn "

// fits reports whether an ETag may be that of value. A store whose ETags are digests has other ones
// for objects with these kinds of encryption.
func (s *store) fits(etag string, value []byte, by types.ServerSideEncryption, customer *string) bool {
	if s.opaque.Load() || customer != nil || strings.HasPrefix(string(by), "aws:") || fips140.Enforced() {
		return true
	}
	return strings.Trim(etag, `"`) == fmt.Sprintf("%x", md5.Sum(value))
}

// Write implements caslock.Store.
func (s *store) Write(ctx context.Context, name string, value []byte, was caslock.Version, _ time.Duration) (caslock.Version, error) {
	if !s.proved.Load() {
		if err := s.prove(ctx); err != nil {
			return "", fmt.Errorf("%w: %w", err, caslock.ErrRefused) // nothing was sent
		}
		s.proved.Store(true)
	}
	if strings.HasPrefix(string(was), torn) {
		return "", caslock.ErrChanged
	}
	return s.put(ctx, s.prefix+keyOf(name), value, string(was))
}

// put writes an object if its ETag is was. "" means that there must be no object.
func (s *store) put(ctx context.Context, key string, value []byte, was string) (caslock.Version, error) {
	in := &s3.PutObjectInput{
		Bucket: &s.bucket, Key: &key, ContentType: aws.String("application/json"),
		CacheControl: aws.String("no-store"), // for proxies in between
	}
	if was == "" {
		in.IfNoneMatch = aws.String("*")
	} else {
		in.IfMatch = &was
	}
	for {
		in.Body = bytes.NewReader(value)
		sending, attempt := s.links.Begin(ctx)
		out, err := s.client.PutObject(sending, in)
		err = attempt.End(err)
		switch {
		case isCode(err, "PreconditionFailed", "NoSuchKey"): // NoSuchKey: it was deleted, so nothing matches
			return "", caslock.ErrChanged
		case isCode(err, "ConditionalRequestConflict") && giveWay(ctx):
			// Another put is in progress, and this one was not done. But the client may have sent
			// this one before, and that attempt may be in progress too. The next answer decides
			// about both.
		case err != nil:
			return "", explain(err)
		case aws.ToString(out.ETag) == "":
			return "", fmt.Errorf("%w: it answers without an ETag", ErrUnreachable)
		case s.proved.Load() && !s.fits(*out.ETag, value, out.ServerSideEncryption, out.SSECustomerAlgorithm):
			return "", fmt.Errorf("%w: it answers with an ETag of something else", ErrUnreachable)
		default:
			return caslock.Version(*out.ETag), nil
		}
	}
}

// giveWay waits for another put to end. It reports false if ctx has ended.
func giveWay(ctx context.Context) bool {
	return pause.For(ctx, 10*time.Millisecond+rand.N(40*time.Millisecond)) == nil
}

// probe is the key, after the prefix, of the object on which conditions are tried. It is the key of
// no name.
const probe = "=probe" + suffix

// prove checks that the store refuses puts whose conditions do not hold. A store that ignores a
// condition does the put, and cannot keep locks. prove also learns whether ETags are digests,
// because the probe's content never changes.
func (s *store) prove(ctx context.Context) error {
	const noETag = `"00000000000000000000000000000000"`
	try := func(was string) error {
		_, err := s.put(ctx, s.prefix+probe, []byte("{}"), was)
		return err
	}
	if err := try(""); err != nil && err != caslock.ErrChanged { // afterwards it exists
		return err
	}
	for _, c := range []struct{ name, was string }{{"If-None-Match", ""}, {"If-Match", noETag}} {
		switch err := try(c.was); err {
		case nil:
			return fmt.Errorf("%w: it ignores %s", ErrConditions, c.name)
		case caslock.ErrChanged:
		default:
			return err
		}
	}
	i, err := s.read(ctx, s.prefix+probe)
	if strings.HasPrefix(string(i.Version), torn) {
		s.opaque.Store(true)
	}
	return err
}

// begin returns the beginning of the keys of all names that begin with prefix and are not long.
func begin(prefix string) string { return parted(caslock.Escape(prefix, plain)) }

// List implements caslock.Store, in the order of keys, with long names last. after is the store's
// own token, after a mark that says in which of the two lists it is.
func (s *store) List(ctx context.Context, prefix, after string, limit int) (items []caslock.Listed, next string, err error) {
	const ofShort, ofLong = "s", "l"
	first, of := begin(prefix), ofShort
	token, isLong := strings.CutPrefix(after, ofLong)
	if isLong {
		first, of = long, ofLong
	} else {
		token = strings.TrimPrefix(after, ofShort)
	}
	page, err := s.page(ctx, first, token, limit)
	for links.Again(ctx, err) {
		page, err = s.page(ctx, first, token, limit)
	}
	if err != nil {
		return nil, "", explain(err)
	}
	var names []string
	for _, o := range page.Contents {
		if name, ok := nameOf(strings.TrimPrefix(aws.ToString(o.Key), s.prefix)); ok && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	switch token := aws.ToString(page.NextContinuationToken); {
	case token != "":
		next = of + token
	case !isLong && first != "": // otherwise they were among these
		next = ofLong
	}
	return s.readAll(ctx, names), next, nil
}

// page requests keys that begin with first.
func (s *store) page(ctx context.Context, first, token string, limit int) (*s3.ListObjectsV2Output, error) {
	ctx, attempt := s.links.Begin(ctx)
	in := &s3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: aws.String(s.prefix + first), MaxKeys: aws.Int32(int32(min(limit, maxPage)))}
	if token != "" {
		in.ContinuationToken = &token
	}
	page, err := s.client.ListObjectsV2(ctx, in)
	return page, attempt.End(err)
}

// maxPage is the number of keys that S3 returns at once.
const maxPage = 1000

// readers is the number of objects that a List reads at once.
const readers = 16

// readAll reads the objects of names that exist.
func (s *store) readAll(ctx context.Context, names []string) []caslock.Listed {
	items := make([]caslock.Listed, len(names))
	several.Bounded(len(names), readers, func(i int) {
		items[i].Item, items[i].Err = s.Read(ctx, names[i])
		items[i].Name = names[i]
	})
	return items
}
