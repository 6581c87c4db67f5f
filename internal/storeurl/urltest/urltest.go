// Package urltest is what the tests of every engine ask of its OpenURL.
package urltest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

// Canary stands for a password in the URLs of a test: no error has it.
const Canary = "s3cr3t-canary"

// Open is the function under test.
type Open func(ctx context.Context, url string) (driver.Driver, error)

// Opens has each URL opened, and closed.
func Opens(t *testing.T, open Open, urls ...string) {
	t.Helper()
	for _, url := range urls {
		d, err := open(t.Context(), url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if err := d.Close(); err != nil {
			t.Errorf("%s: close: %v", url, err)
		}
	}
}

// Wrong has each URL refused, by an error that says what goes with it and has no password.
func Wrong(t *testing.T, open Open, says map[string]string) {
	t.Helper()
	for url, want := range says {
		d, err := open(t.Context(), url)
		if d != nil || !errors.Is(err, driver.ErrURL) {
			t.Errorf("open %q: %v, %v; want ErrURL", url, d, err)
			continue
		}
		if text := err.Error(); !strings.Contains(text, want) || strings.Contains(text, Canary) {
			t.Errorf("open %q: %q; want %q and no password", url, text, want)
		}
	}
}
