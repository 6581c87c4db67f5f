package kubelock

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/leasehold-go/leasehold/driver"
)

// A page that is not found is no Lease that is free, and no namespace that is missing: a server that is only starting has none of
// its pages, and a balancer before it may have no other answer.
func TestPageNotFoundIsNoLease(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	d, err := New(&rest.Config{Host: web.URL}, "locks", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c, err := d.Claim(driver.Request{Resource: "a", Owner: "o", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Try(t.Context()); !errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNoNamespace) {
		t.Errorf("Try: %v; want ErrUnreachable", err)
	}
	if _, err := d.Inspect(t.Context(), "a"); !errors.Is(err, ErrUnreachable) {
		t.Errorf("Inspect: %v; want ErrUnreachable, not that nobody holds it", err)
	}
}

// A refused connection is no answer, which caslock has to see.
func TestRefusedConnection(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.NotFoundHandler())
	web.Close()
	d, err := New(&rest.Config{Host: web.URL}, "locks", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, err = d.Inspect(t.Context(), "a")
	if _, ok := errors.AsType[net.Error](err); !ok || !errors.Is(err, ErrUnreachable) {
		t.Errorf("Inspect: %v; want ErrUnreachable and a net.Error", err)
	}
}

// A namespace without room for a Lease is no user without a right, though the API server forbids both.
func TestServerWithoutRoom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code    int
		reason  meta.StatusReason
		message string
		full    bool
	}{
		{http.StatusForbidden, meta.StatusReasonForbidden, `leases "a" is forbidden: exceeded quota: few, requested: count/leases.coordination.k8s.io=1, used: count/leases.coordination.k8s.io=2, limited: count/leases.coordination.k8s.io=2`, true},
		{http.StatusInternalServerError, "", "etcdserver: mvcc: database space exceeded", true},
		{http.StatusForbidden, meta.StatusReasonForbidden, `leases "a" is forbidden: User "u" cannot create resource "leases"`, false},
		{http.StatusInternalServerError, "", "etcdserver: request timed out", false},
	} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer := meta.Status{TypeMeta: meta.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: meta.StatusFailure, Code: int32(c.code), Reason: c.reason, Message: c.message}
			if r.Method == http.MethodGet {
				answer.Code, answer.Reason, answer.Details = http.StatusNotFound, meta.StatusReasonNotFound, &meta.StatusDetails{Kind: "leases"}
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(int(answer.Code))
			_ = json.NewEncoder(w).Encode(answer)
		}))
		d, err := New(&rest.Config{Host: web.URL}, "locks", nil)
		if err != nil {
			t.Fatal(err)
		}
		claim, err := d.Claim(driver.Request{Resource: "a", Owner: "o", TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // some are asked again
		if _, err = claim.Try(ctx); err == nil || errors.Is(err, driver.ErrFull) != c.full {
			t.Errorf("%s: %v; want driver.ErrFull %v", c.message, err, c.full)
		}
		if c.full && errors.Is(err, driver.ErrDenied) {
			t.Errorf("%s: %v is for want of a right", c.message, err)
		}
		cancel()
		d.Close()
		web.Close()
	}
}
