package storeurl

import (
	"strings"
	"testing"
)

const canary = "s3cr3t-canary"

func TestRedactHidesPasswords(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://:" + canary + "@host:6379/0",
		"redis://user:" + canary + "@host",
		"redis://" + canary + "@host",
		"redis://user:a?" + canary + "@host",
		"redis://user:a#" + canary + "@host",
		"redis://user:a/" + canary + "@host/0",
		"redis://user:a@" + canary + "@host/0",
		"redis://user:" + canary + "@",
		"redis://host?password=" + canary,
		"redis://host?password=a@" + canary,
		"redis://host?password=a&" + canary,
		"redis://host?a=b#" + canary,
		"redis://host#" + canary,
		"redis://u:p@host?password=x@" + canary,
		"redis:user:" + canary + "@host",
		"redis://[::1:" + canary + "@%zz",
		"mysql:user:" + canary + "@tcp(host)/db",
		"user:" + canary + "@tcp(host)/db",
		"postgres:host=h password=" + canary,
		"host=h password=" + canary,
		"://u:" + canary + "@h",
		":" + canary + "@h",
		canary,
		"a\x00:" + canary,
		"",
	} {
		if got := Redact(url); strings.Contains(got, canary) {
			t.Errorf("Redact(%q) = %q", url, got)
		}
	}
}

func TestRedactKeepsTheRest(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"sqlite:/var/lib/locks.db":     "sqlite:/var/lib/locks.db",
		"sqlite:":                      "sqlite:",
		"redis://host:6379/0":          "redis://host:6379/0",
		"redis://u:p@host:6379/0":      "redis://***@host:6379/0",
		"redis://u:p@host:6379/0?db=1": "redis://***@host:6379/0?***",
	} {
		if got := Redact(url); got != want {
			t.Errorf("Redact(%q) = %q, want %q", url, got, want)
		}
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("redis://", ":", "@host", "?a=b")
	f.Fuzz(func(t *testing.T, before, sep, after, query string) {
		// As user information and as an option, with any text around it.
		for _, url := range []string{
			"redis://user" + before + ":" + canary + sep + "@" + after + query,
			"redis://" + before + "?password=" + sep + canary + after + query,
		} {
			if got := Redact(url); strings.Contains(got, canary) {
				t.Errorf("Redact(%q) = %q", url, got)
			}
		}
	})
}

func TestWithoutPassword(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://h":                                    "redis://h",
		"redis://:" + canary + "@h/0":                  "redis://h/0",
		"redis://u:" + canary + "@h1,h2/0?a=b@c":       "redis://u@h1,h2/0?a=b@c",
		"redis://u@h?password_file=%2Fp":               "redis://u@h?password_file=%2Fp",
		"redis://u:a:" + canary + "/@" + canary + "@h": "redis://u@h",
		"postgres://u%40x:" + canary + "@h/db":         "postgres://u%40x@h/db",
		"sqlite:/a:b@c?":                               "sqlite:/a:b@c?",
		"memcached://h1,h2?prefix=":                    "memcached://h1,h2?prefix=",
	} {
		if got := WithoutPassword(url); got != want {
			t.Errorf("WithoutPassword(%q) = %q, want %q", url, got, want)
		}
	}
}
