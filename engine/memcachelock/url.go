package memcachelock

import (
	"context"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

var urlForm = storeurl.Form{Schemes: []string{"memcached"}, Options: []string{"prefix"}, NoUser: true}

// OpenURL returns a *Driver on the servers of a URL. It does no I/O.
//
//	memcached://H1:PORT,H2?prefix=PREFIX
//
// An empty prefix is [Options.NoPrefix]. Users are refused, because the driver does not support
// them. Errors match [driver.ErrURL], which means that the URL is invalid.
func OpenURL(_ context.Context, url string) (driver.Driver, error) {
	u, err := storeurl.Parse(url, urlForm)
	if err != nil {
		return nil, err
	}
	if len(u.Path) > 0 {
		return nil, u.Wrong("takes no path")
	}
	opts := &Options{Prefix: u.Options.Get("prefix")}
	opts.NoPrefix = u.Options.Has("prefix") && opts.Prefix == ""
	d, err := New(u.Hosts, opts)
	if err != nil {
		return nil, u.Wrong("%v", err)
	}
	return d, nil
}
