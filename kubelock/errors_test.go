package kubelock

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

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
