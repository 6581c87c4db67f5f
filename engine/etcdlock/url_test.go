package etcdlock

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasehold-go/leasehold/internal/storeurl"
	"github.com/leasehold-go/leasehold/internal/storeurl/urltest"
)

const canary = urltest.Canary

func TestURLsOpen(t *testing.T) {
	t.Setenv(storeurl.PasswordVariable, "")
	for _, url := range []string{
		"etcd://127.0.0.1:1", "etcd://h1,h2:1,[::1]/locks/a", "etcd://h?prefix=", "etcd://h?prefix=%2Flocks",
		"etcds://h", "etcds://h1,h2?server_name=x", "etcd://h?tls=true",
	} {
		d, err := OpenURL(t.Context(), url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if err := d.Close(); err != nil {
			t.Errorf("%s: close: %v", url, err)
		}
		if d.(*Driver).client.Ctx().Err() == nil {
			t.Errorf("%s: Close of the driver leaves its client open", url)
		}
	}
	t.Setenv(storeurl.PasswordVariable, "of another store")
	d, err := OpenURL(t.Context(), "etcd://h")
	if err != nil {
		t.Fatalf("a password of the environment without a user: %v", err)
	}
	d.Close()
}

// A server that answers as the time for the first answer ends is one that answers.
func TestAnAnswerAtTheLastMoment(t *testing.T) {
	t.Parallel()
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errors.New("no answer in time"))
	for _, c := range []struct {
		ctx     context.Context
		err     error
		reached bool
	}{
		{stopped, nil, true},
		{stopped, context.Canceled, false},
		{t.Context(), rpctypes.ErrUserEmpty, true},
		{t.Context(), ErrUnreachable, false},
	} {
		if err := unreached(c.ctx, c.err); (err == nil) != c.reached || !errors.Is(err, c.err) && !c.reached {
			t.Errorf("%v: %v; want it reached: %v", c.err, err, c.reached)
		}
	}
}

func TestWrongURLs(t *testing.T) {
	t.Setenv(storeurl.PasswordVariable, "")
	urltest.Wrong(t, OpenURL, map[string]string{
		"etcd:" + canary:                         "two slashes",
		"redis://u:" + canary + "@h":             "none of etcd",
		canary:                                   "none of etcd",
		"etcd://":                                "host is missing",
		"etcd://u@h":                             "without a password",
		"etcd://u:" + canary + "@":               "host is missing",
		"etcd://h/a?prefix=b":                    "exclude each other",
		"etcd://h?prefix=a/":                     "slash",
		"etcd://h?password=" + canary:            "unknown",
		"etcd://h?prefix=%01":                    "control character",
		"etcds://u:" + canary + "@h?tls=perhaps": "true or false",
	})
}
