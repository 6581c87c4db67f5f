package httplock

import (
	"context"
	"net"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

var urlForm = storeurl.Form{
	Schemes: []string{"http", "https"},
	Secure:  []string{"https"},
	Options: append([]string{"events"}, storeurl.ServerOptions...),
}

// OpenURL is Connect with the options of a URL.
//
//	https://:TOKEN@HOST:PORT/PATH    http: without TLS, and with a token to this machine alone
//
// The token may also be in the file that the parameter password_file names, which is read for
// each call, or in LEASEHOLD_PASSWORD. events is [Options.Events]. ca_file, cert_file, key_file
// and server_name configure TLS; calls check these files for changes once a second. An error
// that matches [driver.ErrURL] means that the URL is invalid. No error has a token.
func OpenURL(ctx context.Context, url string) (driver.Driver, error) {
	u, err := storeurl.Parse(url, urlForm)
	if err != nil {
		return nil, err
	}
	if len(u.Hosts) != 1 {
		return nil, u.Wrong("takes one host")
	}
	opts := &Options{files: u.TLS, Events: u.Options.Get("events")}
	if u.Password.IsSet() {
		if u.TLS == nil && !isLoopback(storeurl.HostOf(u.Hosts[0])) {
			return nil, u.Wrong("a token goes by https, or to this machine")
		}
		opts.Token = func() (string, error) { return u.Password.Now(), nil }
	}
	ctx, cancel := context.WithTimeout(ctx, storeurl.FirstAnswer)
	defer cancel()
	scheme := "http"
	if u.TLS != nil {
		scheme = "https"
	}
	return Connect(ctx, strings.Join(append([]string{scheme + "://" + u.Hosts[0]}, u.Path...), "/"), opts)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback() || host == "localhost"
}
