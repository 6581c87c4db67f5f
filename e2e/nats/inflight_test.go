package nats

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A write that its leader has, and the others have not, is neither done nor refused: a release that
// comes upon it does not call the lease lost that it may still make.
func TestReleaseDuringAWriteInFlight(t *testing.T) {
	t.Parallel()
	all := servers.StartNATS(t, 3, "")
	other := open(t, urlOf(all)).(*natslock.Driver)
	defer other.Close()
	lead := leader(t, all)
	d, err := natslock.OpenURL(t.Context(), "nats://"+lead.Addr()+"/locks") // so that no connection stands still
	if err != nil {
		t.Fatal(err)
	}
	defer d.(*natslock.Driver).Close()
	if _, err := d.(driver.Operator).Inspect(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	c := claim(t, d, "a", "one")
	var resumes []func()
	for _, s := range all {
		if s != lead {
			resumes = append(resumes, s.Pause())
		}
	}
	if g, err := try(t, c, time.Second); err == nil {
		t.Fatalf("granted by one server of three: %v", g)
	}
	release := func(bound time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		err := c.Release(ctx, driver.End{})
		t.Logf("Release: %v", err)
		return err
	}
	err = release(2 * time.Second)
	for _, resume := range resumes {
		resume()
	}
	if err != nil && !errors.Is(err, driver.ErrLost) {
		err = release(ttl)
	}
	if err != nil && !errors.Is(err, driver.ErrLost) {
		t.Fatalf("Release after all have come back: %v", err)
	}
	electing(t, "Try of another after the release", nil, func() error {
		_, err := try(t, claim(t, other, "a", "two"), 20*time.Second)
		return err
	})
}
