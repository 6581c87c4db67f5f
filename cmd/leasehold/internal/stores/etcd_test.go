package stores

import (
	"errors"
	"strings"
	"testing"
)

func TestEtcdStoresOpen(t *testing.T) {
	t.Setenv(passwordVariable, "")
	for _, url := range []string{
		"etcd://127.0.0.1:1", "etcd://h1,h2:1,[::1]/locks/a", "etcd://h?prefix=", "etcd://h?prefix=%2Flocks",
		"etcds://h", "etcds://h1,h2?server_name=x", "etcd://h?tls=true",
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
	t.Setenv(passwordVariable, "of another store")
	d, _, err := Open(t.Context(), "etcd://h")
	if err != nil {
		t.Fatalf("a password of the environment without a user: %v", err)
	}
	d.Close()
}

func TestWrongEtcdURLs(t *testing.T) {
	t.Setenv(passwordVariable, "")
	for url, says := range map[string]string{
		"etcd:" + canary:                         "two slashes",
		"etcd://":                                "host is missing",
		"etcd://u@h":                             "without a password",
		"etcd://u:" + canary + "@":               "host is missing",
		"etcd://h/a?prefix=b":                    "exclude each other",
		"etcd://h?prefix=a/":                     "slash",
		"etcd://h?password=" + canary:            "unknown",
		"etcd://h?prefix=%01":                    "control character",
		"etcds://u:" + canary + "@h?tls=perhaps": "true or false",
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
