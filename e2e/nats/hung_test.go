package nats

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/natslock"
)

// A client that connects to a server which hangs answers nobody until it gives that up: calls end with
// their contexts all the same.
func TestCallsEndWhileTheClientConnects(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	if err := natslock.CreateBucket(t.Context(), connected(t, s), "locks", 1); err != nil {
		t.Fatal(err)
	}
	const connects = 20 * time.Second
	gone := make(chan struct{}, 1)
	d := on(t, connected(t, s, nats.PingInterval(100*time.Millisecond), nats.MaxPingsOutstanding(5), nats.ReconnectWait(time.Millisecond),
		nats.Timeout(connects), nats.DisconnectErrHandler(func(*nats.Conn, error) { gone <- struct{}{} })))
	holder := claim(t, d, "a", "one")
	claimtest.Granted(t, holder)
	inFlight := make(chan time.Duration, 1)
	resume := s.Pause()
	defer resume()
	bounded := func(bound time.Duration, call func(ctx context.Context) error) time.Duration {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		began := time.Now()
		if err := call(ctx); err == nil {
			t.Error("a server that hangs has answered")
		}
		return time.Since(began) - bound
	}
	go func() {
		inFlight <- bounded(3*time.Second, func(ctx context.Context) error { _, err := holder.Renew(ctx, ttl); return err })
	}()
	<-gone
	for what, call := range map[string]func(ctx context.Context) error{
		"Try":     func(ctx context.Context) error { _, err := claim(t, d, "b", "one").Try(ctx); return err },
		"Inspect": func(ctx context.Context) error { _, err := d.Inspect(ctx, "a"); return err },
		"List":    func(ctx context.Context) error { _, err := d.List(ctx, ""); return err },
		"Check":   func(ctx context.Context) error { _, err := driver.Checker(d).Check(ctx); return err },
	} {
		if late := bounded(300*time.Millisecond, call); late > connects/4 {
			t.Errorf("%s ended %v after its context", what, late)
		}
	}
	if late := <-inFlight; late > connects/4 {
		t.Errorf("a Renew that was under way ended %v after its context", late)
	}
}
