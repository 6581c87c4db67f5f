package stores

import (
	"errors"
	"strings"
	"testing"
)

func TestMemcachedStoresOpen(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"memcached://127.0.0.1:1", "memcached://h1,h2:11212,[::1]", "memcached://h/", "memcached://h?prefix=", "memcached://h?prefix=a:",
	} {
		d, resolved, err := Open(t.Context(), url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if resolved != url {
			t.Errorf("%s: resolved to %s", url, resolved)
		}
		if err := d.Close(); err != nil {
			t.Errorf("%s: close: %v", url, err)
		}
	}
}

func TestWrongMemcachedURLs(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"memcached:" + canary:                    "two slashes",
		"memcached://":                           "host is missing",
		"memcached://h1,,h2":                     "is not HOST",
		"memcached://h,h:11211":                  "same server",
		"memcached://h:0":                        "port",
		"memcached://u:" + canary:                "port",
		"memcached://h/1":                        "host is missing or",
		"memcached://u:" + canary + "@h":         "no user",
		"memcached://h?password=" + canary:       "unknown",
		"memcached://h?prefix=a&prefix=b":        "twice",
		"memcached://h?prefix=a%20b":             "blank",
		"memcached://h?%zz" + canary:             "cannot be read",
		"memcached://u:" + canary + "@h1,h2?a=b": "no user",
	} {
		d, resolved, err := Open(t.Context(), url)
		if d != nil || resolved != "" || !errors.Is(err, ErrURL) {
			t.Errorf("Open(%q) = %v, %q, %v, want ErrURL", url, d, resolved, err)
			continue
		}
		if text := err.Error(); !strings.Contains(text, says) || strings.Contains(text, canary) {
			t.Errorf("Open(%q): %q, want %q and no password", url, text, says)
		}
	}
}
