package zklock

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

var urlForm = storeurl.Form{
	Schemes: []string{"zookeeper"},
	Options: append([]string{"prefix", "ttl_nodes"}, storeurl.ServerOptions...),
}

// OpenURL returns a *Driver on the ensemble of a URL, with a session for each TTL. It sends
// nothing: the first call to the driver connects.
//
//	zookeeper://USER:PASSWORD@H1:PORT,H2,H3/CHROOT
//
// The parameters prefix and ttl_nodes=true are the fields of Options. tls=true, ca_file,
// cert_file, key_file and server_name configure TLS. password_file names a file with the
// password; for a user without either, it is in LEASEHOLD_PASSWORD. Each new connection reads
// the files again, and so does a call that an ACL has refused. An error that matches
// [driver.ErrURL] means that the URL is invalid. No error has a password.
func OpenURL(_ context.Context, url string) (driver.Driver, error) {
	u, err := storeurl.Parse(url, urlForm)
	if err != nil {
		return nil, err
	}
	opts := &Options{
		Chroot: strings.Join(u.Path, "/"), Prefix: u.Options.Get("prefix"), User: u.User, Password: u.Password.Now(),
	}
	if opts.TTLNodes, err = u.Bool("ttl_nodes", false); err != nil {
		return nil, err
	}
	if u.User == "" {
		opts.Password = "" // it is from the environment, and meant for a user
	}
	if u.TLS != nil {
		opts.Dial = dialTLS(u.TLS)
	}
	d, err := New(u.Hosts, opts)
	if err != nil {
		return nil, u.Wrong("%v", err)
	}
	if u.User != "" && u.Password.Changes() {
		d.password = u.Password.Now
		// zk.AuthACL would mean every password that the ensemble was sent on this connection.
		d.acl = func() []zk.ACL { return zk.DigestACL(zk.PermAll, u.User, u.Password.Now()) }
	}
	return d, nil
}

// dialTLS returns a dialer for TLS, which reads the certificates for each connection. Without a
// server_name, each server must have a certificate for its address.
func dialTLS(t *storeurl.TLS) zk.Dialer {
	return func(network, address string, timeout time.Duration) (net.Conn, error) {
		return t.Dial(context.Background(), &net.Dialer{Timeout: timeout}, network, address)
	}
}
