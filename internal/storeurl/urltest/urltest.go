// Package urltest has the tests that every engine's OpenURL must pass.
package urltest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

// Canary is a password in the URLs of tests. No error may contain it.
const Canary = "s3cr3t-canary"

// Open is the function under test.
type Open func(ctx context.Context, url string) (driver.Driver, error)

// Opens requires that each URL can be opened, and closes the driver.
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

// Wrong requires that each URL is refused by an error that contains its text, and no password.
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
