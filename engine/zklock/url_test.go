package zklock

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/storeurl"
	"github.com/leasehold-go/leasehold/internal/storeurl/urltest"
)

const canary = urltest.Canary

func TestURLsOpen(t *testing.T) {
	urltest.Opens(t, OpenURL,
		"zookeeper://h", "zookeeper://h1,h2:2182,[::1]", "zookeeper://h/a/chroot", "zookeeper://u:p%40@h1,h2/app?prefix=%2Flocks",
		"zookeeper://h?tls=true", "zookeeper://h?server_name=x", "zookeeper://h?ttl_nodes=true",
	)
	t.Setenv(storeurl.PasswordVariable, canary)
	if d, err := OpenURL(t.Context(), "zookeeper://h"); err != nil {
		t.Errorf("a password in the environment, and no user: %v", err)
	} else {
		d.Close()
	}
}

func TestWrongURLs(t *testing.T) {
	t.Parallel()
	urltest.Wrong(t, OpenURL, map[string]string{
		"zookeeper:" + canary:                                "two slashes",
		"zk://u:" + canary + "@h":                            "none of zookeeper",
		canary:                                               "none of zookeeper",
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
	})
}
