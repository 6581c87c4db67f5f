package nats

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/natslock"
)

// What is missing, wrong or may not be done is told by name, and nothing is held.
func TestWrongBuckets(t *testing.T) {
	t.Parallel()
	s := within(t, locker(t)+"\n{ user: deaf, password: pw, permissions: { subscribe: { deny: \"_INBOX.>\" } } }\n")
	try := func(url string) error {
		d, err := natslock.OpenURL(t.Context(), url)
		if err != nil {
			return err
		}
		defer d.Close()
		c, err := d.Claim(driver.Request{Resource: "a", Owner: "o", TTL: ttl})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err = c.Try(ctx)
		return err
	}
	for url, want := range map[string]error{
		"nats://admin:pw@ADDR/none":      natslock.ErrNoBucket,
		"nats://locker:pw@ADDR/none":     natslock.ErrAuth,
		"nats://deaf:pw@ADDR/locks":      natslock.ErrAuth,
		"nats://locker:wrong@ADDR/locks": natslock.ErrAuth,
		"nats://:wrong@ADDR/locks":       natslock.ErrAuth,
		"nats://ADDR/locks":              natslock.ErrAuth,
		"nats://n:n@ADDR/locks":          natslock.ErrUnreachable, // its account has no JetStream
		"nats://admin:pw@ADDR/a%2fb":     driver.ErrUnsupported,
		"nats://ADDR/a/b":                driver.ErrURL,
	} {
		start := time.Now()
		if err := try(strings.Replace(url, "ADDR", s.Addr(), 1)); !errors.Is(err, want) {
			t.Errorf("%s: %v; want %v", url, err, want)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s: told after %v", url, took)
		}
	}
}

// Whoever may use a bucket and not create one opens it by the URL that would create it.
func TestOpenCreatesWhatIsMissing(t *testing.T) {
	t.Parallel()
	s := within(t, locker(t))
	open := func(user, bucket string, open func(context.Context, string) (driver.Driver, error)) error {
		d, err := open(t.Context(), "nats://"+user+":pw@"+s.Addr()+"/"+bucket)
		if err != nil {
			return err
		}
		defer d.Close()
		_, _, err = d.(driver.Operator).List(t.Context(), "", "", 100)
		return err
	}
	if err := open("locker", "locks", natslock.CreateURL); err != nil {
		t.Errorf("the user of the page: %v", err)
	}
	if err := open("locker", "more", natslock.CreateURL); !errors.Is(err, natslock.ErrAuth) {
		t.Errorf("the user of the page, a new bucket: %v; want ErrAuth", err)
	}
	if err := open("admin", "more", natslock.OpenURL); !errors.Is(err, natslock.ErrNoBucket) {
		t.Errorf("OpenURL: %v; want ErrNoBucket", err)
	}
	for range 2 {
		if err := open("admin", "more", natslock.CreateURL); err != nil {
			t.Errorf("CreateURL: %v", err)
		}
	}
}
