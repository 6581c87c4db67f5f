package s3lock

import (
	"encoding/xml"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leasehold-go/leasehold/driver"
)

// A refused connection is no answer, which caslock has to see.
func TestRefusedConnection(t *testing.T) {
	t.Parallel()
	store := httptest.NewServer(http.NotFoundHandler())
	store.Close()
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String(store.URL), UsePathStyle: true, Region: "us-east-1", RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
	})
	d, err := New(client, "locks", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, err = d.Inspect(t.Context(), "a")
	if _, ok := errors.AsType[net.Error](err); !ok || !errors.Is(err, ErrUnreachable) {
		t.Errorf("Inspect: %v; want ErrUnreachable and a net.Error", err)
	}
}

// A store that has no room says so, and none of that is for want of a right, whatever the status.
func TestStoreWithoutRoom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		code   string
		means  error
	}{
		{http.StatusForbidden, "QuotaExceeded", driver.ErrFull},
		{http.StatusInsufficientStorage, "XMinioStorageFull", driver.ErrFull},
		{http.StatusBadRequest, "XMinioAdminBucketQuotaExceeded", driver.ErrFull},
		{http.StatusInsufficientStorage, "", driver.ErrFull},
		{http.StatusForbidden, "AccessDenied", driver.ErrDenied},
		{http.StatusServiceUnavailable, "SlowDown", ErrSlowDown},
	} {
		store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			status, code := c.status, c.code
			if r.Method != http.MethodPut {
				status, code = http.StatusNotFound, "NoSuchKey"
			}
			w.WriteHeader(status)
			if code != "" {
				_ = xml.NewEncoder(w).Encode(struct {
					XMLName xml.Name `xml:"Error"`
					Code    string
				}{Code: code})
			}
		}))
		client := s3.New(s3.Options{
			BaseEndpoint: aws.String(store.URL), UsePathStyle: true, Region: "us-east-1", RetryMaxAttempts: 1,
			Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
		})
		d, err := New(client, "locks", nil)
		if err != nil {
			t.Fatal(err)
		}
		claim, err := d.Claim(driver.Request{Resource: "a", Owner: "o", TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		_, err = claim.Try(t.Context())
		for _, one := range []error{driver.ErrFull, driver.ErrDenied, ErrSlowDown} {
			if errors.Is(err, one) != (one == c.means) {
				t.Errorf("%d %s: %v; want %v", c.status, c.code, err, c.means)
			}
		}
		d.Close()
		store.Close()
	}
}
