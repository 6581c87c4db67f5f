package s3lock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/rehearsal"
)

// Check reports whether the bucket keeps every put, as far as the user may know, and the
// difference of the store's clock, which its answers give in seconds.
func (d *Driver) Check(ctx context.Context) ([]driver.Finding, error) {
	before := time.Now()
	_, err := d.store.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &d.store.bucket, Key: aws.String(d.store.prefix + keyOf(rehearsal.Name()))})
	after := time.Now()
	answer, ok := errors.AsType[*awshttp.ResponseError](err)
	if !ok {
		return nil, explain(err)
	}
	var found []driver.Finding
	if now, err := http.ParseTime(answer.Response.Header.Get("Date")); err == nil {
		found = append(found, clockFinding(before, now.Add(time.Second/2), after))
	}
	if !isCode(err, "NoSuchKey") {
		return found, explain(err)
	}
	versioning, err := d.store.client.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: &d.store.bucket})
	switch {
	case err != nil: // locks do not need this right
	case versioning.Status == types.BucketVersioningStatusEnabled:
		found = append(found, driver.Finding{About: driver.AboutSpace, Level: driver.Weak,
			Text:   "the bucket keeps every version: each grant, renewal and release adds an object that is paid for",
			Advice: "use a bucket without versioning, or let a lifecycle rule remove noncurrent versions"})
	case versioning.Status == types.BucketVersioningStatusSuspended:
		found = append(found, driver.Finding{About: driver.AboutSpace, Level: driver.Weak,
			Text:   "the bucket's versioning is suspended: what is deleted leaves a marker, and older versions are paid for",
			Advice: "use a bucket that never had versions, or let a lifecycle rule remove noncurrent versions and markers"})
	default:
		found = append(found, driver.Finding{About: driver.AboutSpace, Text: "the bucket keeps one version of each object"})
	}
	return found, nil
}

// clockFinding says what the store's clock is used for; leases do not depend on it.
func clockFinding(before, now, after time.Time) driver.Finding {
	f := driver.ClockFinding("", before, now, after)
	if f.Level > driver.Fine {
		f.Text, _, _ = strings.Cut(f.Text, ":")
		f.Text += ": no lease ends by it, but at 15 minutes it refuses our requests"
	}
	return f
}

// Rehearse does to a test object what locks do to theirs. It puts the object if it is missing,
// reads it, and puts it again if it is unchanged. It leaves nothing else behind.
func (d *Driver) Rehearse(ctx context.Context) error {
	if err := d.store.prove(ctx); err != nil {
		return fmt.Errorf("take a lock: %w", err)
	}
	key := d.store.prefix + probe
	i, err := d.store.read(ctx, key)
	if err != nil {
		return fmt.Errorf("read a lock: %w", err)
	}
	_, err = d.store.put(ctx, key, []byte("{}"), string(i.Version))
	if err != nil && !errors.Is(err, caslock.ErrChanged) { // another rehearsal may have put it
		return fmt.Errorf("renew a lock: %w", err)
	}
	return nil
}
