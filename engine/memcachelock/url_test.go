package memcachelock

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/storeurl"
	"github.com/leasehold-go/leasehold/internal/storeurl/urltest"
)

const canary = urltest.Canary

func TestURLsOpen(t *testing.T) {
	t.Setenv(storeurl.PasswordVariable, "of another store")
	urltest.Opens(t, OpenURL,
		"memcached://127.0.0.1:1", "memcached://h1,h2:11212,[::1]", "memcached://h/", "memcached://h?prefix=", "memcached://h?prefix=a:",
	)
}

func TestWrongURLs(t *testing.T) {
	t.Parallel()
	urltest.Wrong(t, OpenURL, map[string]string{
		"memcached:" + canary:                    "two slashes",
		"memcache://u:" + canary + "@h":          "none of memcached",
		canary:                                   "none of memcached",
		"memcached://":                           "host is missing",
		"memcached://h1,,h2":                     "host is missing",
		"memcached://h,h:11211":                  "same server",
		"memcached://h:0":                        "port",
		"memcached://u:" + canary:                "port",
		"memcached://h/1":                        "no path",
		"memcached://u:" + canary + "@h":         "no user",
		"memcached://h?password=" + canary:       "unknown",
		"memcached://h?prefix=a&prefix=b":        "twice",
		"memcached://h?prefix=a%20b":             "blank",
		"memcached://h?%zz" + canary:             "cannot be read",
		"memcached://u:" + canary + "@h1,h2?a=b": "no user",
	})
}
