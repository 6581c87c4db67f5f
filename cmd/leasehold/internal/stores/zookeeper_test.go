package stores

import (
	"errors"
	"strings"
	"testing"
)

func TestZooKeeperStoresOpen(t *testing.T) {
	for _, url := range []string{
		"zookeeper://h", "zookeeper://h1,h2:2182,[::1]", "zookeeper://h/a/chroot", "zookeeper://u:p%40@h1,h2/app?prefix=%2Flocks",
		"zookeeper://h?tls=true", "zookeeper://h?server_name=x", "zookeeper://h?ttl_nodes=true",
	} {
		d, resolved, err := Open(t.Context(), url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if !strings.HasPrefix(resolved, "zookeeper://") {
			t.Errorf("%s: resolved to %s", url, resolved)
		}
		if err := d.Close(); err != nil {
			t.Errorf("%s: close: %v", url, err)
		}
	}
	t.Setenv(passwordVariable, canary)
	if d, _, err := Open(t.Context(), "zookeeper://h"); err != nil {
		t.Errorf("a password in the environment, and no user: %v", err)
	} else {
		d.Close()
	}
}

func TestWrongZooKeeperURLs(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"zookeeper:" + canary:                                "two slashes",
		"zookeeper://":                                       "host is missing",
		"zookeeper://h1,,h2":                                 "host is missing",
		"zookeeper://h/a/../b":                               "Chroot",
		"zookeeper://h?prefix=..":                            "Prefix",
		"zookeeper://u:" + canary + "@h?prefix=..":           "Prefix",
		"zookeeper://u%3Av:" + canary + "@h":                 "colon",
		"zookeeper://:" + canary + "@h/..":                   "Chroot",
		"zookeeper://h?password=" + canary:                   "unknown",
		"zookeeper://h?session_timeout=30s":                  "unknown",
		"zookeeper://u:" + canary + "@h?%zz":                 "cannot be read",
		"zookeeper://u:" + canary + "@h?tls=perhaps":         "true or false",
		"zookeeper://u:" + canary + "@h?ttl_nodes=" + canary: "true or false",
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
