package s3

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/s3lock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// versioned returns a client of a store whose bucket keeps versions.
func versioned(t *testing.T, s *servers.S3) *s3.Client {
	t.Helper()
	client, end := connect(s.Endpoint())
	t.Cleanup(end)
	_, err := client.PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
		Bucket:                  aws.String("locks"),
		VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// deleteObject puts a delete marker over an object, or removes a version of it for good. It returns the
// version of the marker.
func deleteObject(t *testing.T, client *s3.Client, key string, version *string) string {
	t.Helper()
	out, err := client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: aws.String("locks"), Key: &key, VersionId: version})
	if err != nil {
		t.Fatal(err)
	}
	return aws.ToString(out.VersionId)
}

func locker(t *testing.T, s *servers.S3) *leasehold.Locker {
	t.Helper()
	locks, err := leasehold.New(open(t, s.Endpoint()), &leasehold.Options{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close() })
	return locks
}

// Of an object under a delete marker every call says so, and how its record comes back. No token goes
// back then, and who holds goes on.
func TestDeleteMarker(t *testing.T) {
	t.Parallel()
	s := servers.StartS3WithVersions(t)
	client := versioned(t, s)
	locks, others := locker(t, s), locker(t, s)
	lease, err := locks.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Extend(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	marker := deleteObject(t, client, "leasehold/a.json", nil)

	explained := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, s3lock.ErrDeleted) || errors.Is(err, leasehold.ErrLost) || !strings.Contains(err.Error(), "leasehold/a.json") {
			t.Errorf("%s under a delete marker: %v", what, err)
		}
	}
	_, err = others.Acquire(t.Context(), "a", leasehold.Wait(30*time.Second))
	explained("acquire", err)
	_, err = others.TryAcquire(t.Context(), "a")
	explained("try", err)
	_, err = others.Inspect(t.Context(), "a")
	explained("inspect", err)
	if _, err = others.Page(t.Context(), leasehold.PageOptions{}); err != nil {
		t.Errorf("list: %v", err)
	}
	// Some stores match the ETag of what is below the marker. That brings the record back, too.
	if err := lease.Extend(t.Context(), time.Minute); err != nil {
		explained("extend", err)
	}
	if lease.Context().Err() != nil {
		t.Error("lost by a deletion that can be undone")
	}

	deleteObject(t, client, "leasehold/a.json", &marker)
	if err := lease.Extend(t.Context(), time.Minute); err != nil {
		t.Errorf("extend once the marker is removed: %v", err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	next, err := others.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if next.Token() <= lease.Token() {
		t.Errorf("token %d after %d", next.Token(), lease.Token())
	}
}
