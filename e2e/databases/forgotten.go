package databases

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/serve"
)

// ForgottenConnections holds a lease, waits for it, and calls a service, all through name, a proxy
// that url leads to. It then makes the proxy forget all connections. New ones work.
func ForgottenConnections(t *testing.T, url string, name *servers.Proxy) {
	const ttl = 10 * time.Second
	lost := make(chan error, 1)
	holder := Locker(t, byURL(t, url), leasehold.Options{TTL: ttl})
	lease, err := holder.Acquire(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	var busy sync.WaitGroup
	for i := range 8 { // so that several connections are idle
		busy.Go(func() {
			if err := holder.Do(t.Context(), fmt.Sprint("warm ", i), func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	busy.Wait()
	context.AfterFunc(lease.Context(), func() { lost <- context.Cause(lease.Context()) })
	waiter := Locker(t, byURL(t, url), leasehold.Options{TTL: ttl})
	granted := make(chan error, 1)
	waits := make(chan time.Time, 1)
	began := time.Now()
	go func() {
		next, err := waiter.Acquire(t.Context(), "held")
		waits <- time.Now()
		if err == nil {
			err = next.Release(context.Background())
		}
		granted <- err
	}()
	until(t, "somebody waits", margin, func() bool {
		select {
		case err := <-granted:
			t.Fatalf("the waiter ends after %v: %v", time.Since(began), err)
		default:
		}
		s, err := holder.Inspect(t.Context(), "held")
		return err == nil && len(s.Waiters) == 1
	})
	ask := service(t, url)
	for range 3 {
		if err := ask(); err != nil {
			t.Fatal(err)
		}
	}
	direct := byURL(t, url)
	renewed := claimOf(t, direct, driver.Request{Resource: "renewed", Mode: driver.Shared})
	mustTry(t, renewed)
	if n := name.Forget(); n < 4 {
		t.Fatalf("%d connections were forgotten; want those of four stores", n)
	}
	forgotten := time.Now()
	if err := ask(); err != nil { // the core gives a call 5 s
		t.Errorf("a call to the service: %v", err)
	}
	t.Logf("the service answers %v after its connections were forgotten", time.Since(forgotten).Round(time.Millisecond))
	// If the connection was too busy to be tested before, the first renewal fails.
	for _, try := range []string{"first", "second"} {
		ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
		_, err := renewed.Renew(ctx, time.Minute)
		stop()
		if err == nil {
			t.Logf("the %s renewal got through", try)
			break
		} else if try == "second" {
			t.Errorf("the second renewal: %v", err)
		}
	}

	deadline := lease.Deadline()
	until(t, "the lease is renewed", ttl+margin, func() bool {
		select {
		case err := <-lost:
			t.Fatalf("the lease is lost: %v", err)
		default:
		}
		return lease.Deadline().After(deadline)
	})
	released := time.Now()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-granted:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(margin):
		t.Fatal("the waiter is not granted")
	}
	t.Logf("the waiter is granted %v after the release", (<-waits).Sub(released).Round(time.Millisecond))
}

// service serves the store at url. It returns a call to the service that takes another lock.
func service(t testing.TB, url string) (ask func() error) {
	t.Helper()
	s, err := serve.New(byURL(t, url), nil)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		h.Close()
		s.Close()
	})
	n := 0
	return func() error {
		n++
		answer, err := http.Post(h.URL+"/v1/acquire", "application/json", strings.NewReader(fmt.Sprintf(`{"name": "served %d", "ttl_ms": 5000}`, n)))
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
		return nil
	}
}

// ReleaseAnswerLost releases a lease through name, a proxy that url leads to. The proxy loses the
// answer, and forgets the connection when another has the lease. direct leads past the proxy. The
// repeated release does not end the other's lease, and does not report that its own was lost. On a
// busy machine the release may not reach the server before it is over, or not be repeated by then.
func ReleaseAnswerLost(t *testing.T, url, direct string, name *servers.Proxy) {
	var late error
	for round := range 5 {
		if late = releaseAnswerLost(t, url, direct, fmt.Sprint("answered ", round), name); late == nil {
			return
		}
		t.Log(late)
	}
	t.Error(late)
}

func releaseAnswerLost(t *testing.T, url, direct, resource string, name *servers.Proxy) (late error) {
	holder := claimOf(t, byURL(t, url), driver.Request{Resource: resource})
	next := claimOf(t, byURL(t, direct), driver.Request{Resource: resource})
	release := func() error {
		time.Sleep(10 * time.Millisecond) // a lease that was granted a moment ago is released by another statement
		ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
		defer stop()
		return holder.Release(ctx, driver.End{})
	}
	mustTry(t, holder)
	if err := release(); errors.Is(err, driver.ErrLost) { // so that the statement is prepared
		t.Fatal(err)
	} else if err != nil {
		return err
	}
	mustTry(t, holder)
	name.DropReplies()
	released := make(chan error, 1)
	go func() { released <- release() }()
	granted := false
	for ; !granted && len(released) == 0; time.Sleep(20 * time.Millisecond) {
		_, err := next.Try(t.Context())
		granted = err == nil
	}
	name.Forget()
	name.Pass()
	err := <-released
	if errors.Is(err, driver.ErrLost) {
		t.Fatalf("Release: %v", err)
	}
	if !granted {
		return fmt.Errorf("nobody else was granted before the release returned %v", err)
	}
	if _, err := next.Renew(t.Context(), time.Minute); err != nil {
		t.Errorf("the next one's lease: %v", err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}
