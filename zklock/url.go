package zklock

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

var urlForm = storeurl.Form{
	Schemes: []string{"zookeeper"},
	Options: append([]string{"prefix", "ttl_nodes"}, storeurl.ServerOptions...),
}

// OpenURL returns a *Driver on the ensemble that a URL names, with a session for each TTL. It
// sends nothing: the first call to the driver connects.
//
//	zookeeper://USER:PASSWORD@H1:PORT,H2,H3/CHROOT
//
// Options after a "?": prefix and ttl_nodes=true are those of Options; tls=true, ca_file, cert_file,
// key_file and server_name are about TLS; password_file names a file. For a user without a
// password there LEASEHOLD_PASSWORD counts. An error that matches [driver.ErrURL]: the URL cannot be
// used as it is written. No error has a password.
func OpenURL(_ context.Context, url string) (driver.Driver, error) {
	u, err := storeurl.Parse(url, urlForm)
	if err != nil {
		return nil, err
	}
	opts := &Options{
		Chroot: strings.Join(u.Path, "/"), Prefix: u.Options.Get("prefix"), User: u.User, Password: u.Password,
	}
	if opts.TTLNodes, err = u.Bool("ttl_nodes", false); err != nil {
		return nil, err
	}
	if u.User == "" {
		opts.Password = "" // of the environment, which is for a user
	}
	if u.TLS != nil {
		opts.Dial = dialTLS(u.TLS)
	}
	d, err := New(u.HostPorts("2181"), opts)
	if err != nil {
		return nil, u.Wrong("%v", err)
	}
	return d, nil
}

// dialTLS is a dialer for servers that speak TLS. Without a server_name each must be who
// its address says.
func dialTLS(config *tls.Config) func(network, address string, timeout time.Duration) (net.Conn, error) {
	return func(network, address string, timeout time.Duration) (net.Conn, error) {
		return tls.DialWithDialer(&net.Dialer{Timeout: timeout}, network, address, config)
	}
}
