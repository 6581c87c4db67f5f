package redislock

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

const canary = "s3cr3t-canary"

func TestURLsOpen(t *testing.T) {
	t.Setenv(storeurl.PasswordVariable, "")
	for _, url := range []string{
		"redis://127.0.0.1:1/2", "redis://h?prefix=", "redis://h?prefix=a:&replicas=2", "rediss://h", "rediss://h/1?server_name=x",
		"Redis://h?rest=50ms", "redis://h?min_uptime=5m", "redis://h?min_uptime=off",
		"redis+sentinel://h1,h2,h3/mymaster", "redis+sentinel://h1/mymaster/2", "redis+cluster://h1,h2", "redis+cluster://h1?tls=true",
		"redlock://h1,h2,h3", "redlock://h1,h2:1,[::1]/2?min_uptime=1m", "redlock://h1,h2,h3?min_uptime=off&prefix=",
	} {
		s, err := openURL(url) // no server is there to answer
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if err := s.driver.Close(); err != nil {
			t.Errorf("%s: close: %v", url, err)
		}
		for _, c := range s.clients {
			if err := c.Ping(t.Context()).Err(); !errors.Is(err, redis.ErrClosed) {
				t.Errorf("%s: Close of the driver leaves its client open", url)
			}
		}
	}
}

func TestWrongURLs(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"redis:" + canary:                           "two slashes",
		"redis://":                                  "host is missing",
		"redis://h1,,h2":                            "host is missing",
		"redis://h1,h2":                             "one host",
		"redis://h/x":                               "database",
		"redis://h/-1":                              "database",
		"redis://h/1/2":                             "nothing more",
		"redis://u:%zz" + canary + "@h":             "no escape",
		"redis://h?password=" + canary:              "unknown",
		"redis://h?prefix=a&prefix=b":               "twice",
		"redis://h?replicas=x":                      "replicas",
		"redis://h?replicas=-1":                     "replicas",
		"redis://h?rest=x":                          "rest is no duration",
		"redis://h?rest=1m":                         "at most 500ms",
		"redis://h?tls=" + canary:                   "true or false",
		"redis://u:" + canary + "@h?tls=x":          "true or false",
		"redis://u:" + canary + "@h?prefix=%7B":     "hash tag",
		"redis://u:" + canary + "@h?%zz":            "cannot be read",
		"redis://:" + canary + "@h?password_file=/": "exclude each other",
		"redis://h?password_file=":                  "password_file is empty",
		"redis+sentinel://h1":                       "primary's name",
		"redis+sentinel://h1/m/0/x":                 "primary's name",
		"redis+sentinel://h1/m/x":                   "database",
		"redis+cluster://h1/0":                      "no database",
		"redis+cluster://h1?min_uptime=1m":          "Cluster",
		"redis://h?min_uptime=-1s":                  "min_uptime is off, or",
		"redis://h?min_uptime=0s":                   "min_uptime is off, or",
		"redlock://h1,h2":                           "odd number",
		"redlock://h1,h2,h3?min_uptime=-1s":         "min_uptime is off, or",
		"redlock://h1,h2,h3?rest=50ms":              "one server",
		"redlock://h1,h2,h3?replicas=1":             "one server",
		"redlock://h1,h2,h3/1/2":                    "nothing more",
		"redlock://u:" + canary + "@h1,h2,h3/x":     "database",
		"etcd://u:" + canary + "@h":                 "none of redis",
		"h:" + canary:                               "none of redis",
		canary:                                      "none of redis",
	} {
		d, err := OpenURL(t.Context(), url)
		if d != nil || !errors.Is(err, driver.ErrURL) {
			t.Errorf("OpenURL(%q) = %v, %v, want ErrURL", url, d, err)
			continue
		}
		if text := err.Error(); !strings.Contains(text, says) || strings.Contains(text, canary) {
			t.Errorf("OpenURL(%q): %q, want %q and no password", url, text, says)
		}
	}
}

func FuzzURLErrorsKeepSecrets(f *testing.F) {
	f.Add("redis://u:", "@h?replicas=x")
	f.Fuzz(func(t *testing.T, before, after string) {
		s, err := openURL(before + canary + after)
		if err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("%q and %q: %v", before, after, err)
		}
		if err == nil {
			s.driver.Close()
		}
	})
}
