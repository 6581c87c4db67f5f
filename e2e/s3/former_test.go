package s3

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// An object is put back to what it was: what was released since is free after a TTL, holders of since learn, and
// fences grow where they were seen. The same when the bucket is deleted and made anew.
func TestObjectsOfBefore(t *testing.T) {
	t.Parallel()
	s := servers.StartS3(t)
	client, end := connect(s.Endpoint())
	defer end()
	one, other := open(t, s.Endpoint()), open(t, s.Endpoint())
	const ttl = 3 * time.Second
	claimed := func(d driver.Driver) driver.Claim {
		return claimtest.New(t, d, driver.Request{Resource: "a", Owner: fmt.Sprint(time.Now().UnixNano()), TTL: ttl})
	}
	var last uint64
	again := func(d driver.Driver) {
		t.Helper()
		c := claimed(d)
		for end := time.Now().Add(time.Minute); ; time.Sleep(poll) {
			g, err := c.Try(t.Context())
			if err == nil && g.Fence <= last {
				t.Errorf("fence %d after %d", g.Fence, last)
			}
			if last = max(last, g.Fence); err == nil {
				break
			}
			if !errors.Is(err, driver.ErrBusy) || time.Now().After(end) {
				t.Fatalf("Try: %v; want a grant", err)
			}
		}
		claimtest.Released(t, c)
	}
	bucket, key := aws.String("locks"), aws.String("leasehold/a.json")
	first := claimed(one)
	claimtest.Granted(t, first)
	out, err := client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: bucket, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	before, err := io.ReadAll(out.Body)
	out.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	claimtest.Released(t, first)
	again(other)
	for what, goBack := range map[string]func() error{
		"an old version": func() error {
			_, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: bucket, Key: key, Body: bytes.NewReader(before)})
			return err
		},
		"a new bucket": func() error {
			for _, key := range []string{"leasehold/a.json", "leasehold/=probe.json"} {
				if _, err := client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: bucket, Key: &key}); err != nil {
					return err
				}
			}
			if _, err := client.DeleteBucket(t.Context(), &s3.DeleteBucketInput{Bucket: bucket}); err != nil {
				return err
			}
			_, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: bucket})
			return err
		},
	} {
		again(other)
		since := claimed(one)
		last = claimtest.Granted(t, since).Fence
		claimtest.Refused(t, claimed(other)) // which has seen its fence
		if err := goBack(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if g, err := since.Renew(t.Context(), ttl); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: Renew of what was granted since: %v, %v; want ErrLost", what, g, err)
		}
		again(other)
		again(one)
	}
}
