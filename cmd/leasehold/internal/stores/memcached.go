package stores

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memcachelock"
)

// openMemcached opens "//h1,h2:PORT?prefix=lock:". It sends nothing: the first call to the
// driver connects. Memcached has no users, so that a URL with one is refused.
func openMemcached(_ context.Context, rest string) (driver.Driver, string, error) {
	body, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return nil, "", wrongMemcached("is followed by two slashes: memcached://host1,host2")
	}
	hosts, query, _ := strings.Cut(body, "?")
	if strings.Contains(hosts, "@") {
		return nil, "", wrongMemcached("takes no user and no password, because the client cannot give them")
	}
	hosts = strings.TrimSuffix(hosts, "/")
	if hosts == "" || strings.ContainsAny(hosts, "/# \t") {
		return nil, "", wrongMemcached("a host is missing or has a character that none has")
	}
	opts, err := memcachedOptions(query)
	if err != nil {
		return nil, "", err
	}
	d, err := memcachelock.New(strings.Split(hosts, ","), opts)
	if err != nil {
		return nil, "", wrongMemcached("%v", err)
	}
	return d, rest, nil
}

// memcachedOptions are what may stand after the "?".
func memcachedOptions(query string) (*memcachelock.Options, error) {
	options, err := url.ParseQuery(query)
	if err != nil {
		return nil, wrongMemcached("options cannot be read")
	}
	prefix, given := options["prefix"]
	delete(options, "prefix")
	if len(options) > 0 || len(prefix) > 1 {
		return nil, wrongMemcached("an option is unknown or given twice; known: prefix")
	}
	opts := &memcachelock.Options{Prefix: strings.Join(prefix, "")}
	opts.NoPrefix = given && opts.Prefix == ""
	return opts, nil
}

func wrongMemcached(format string, args ...any) error {
	return fmt.Errorf("%w: memcached: "+format, append([]any{ErrURL}, args...)...)
}
