package storeurl

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"

	"github.com/leasehold-go/leasehold/internal/reread"
)

// TLSOptions are the parameters of TLS.
var TLSOptions = []string{"ca_file", "cert_file", "key_file", "server_name", "tls"}

// A TLS makes TLS configurations from the current contents of a URL's files.
type TLS struct {
	Name string // name in the server's certificate; "": its address

	roots *reread.Files[*x509.CertPool]   // nil: the system's
	pair  *reread.Files[*tls.Certificate] // nil: the client has none
}

// makeTLS enables TLS if the scheme or an option asks for it.
func (u *URL) makeTLS(on bool) error {
	o := u.Options
	for _, key := range []string{"ca_file", "cert_file", "key_file", "server_name"} {
		on = on || o.Get(key) != ""
	}
	asked, err := u.Bool("tls", false)
	if err != nil || !on && !asked {
		return err
	}
	u.TLS = &TLS{Name: o.Get("server_name")}
	if u.TLS.Name == "" && len(u.Hosts) == 1 {
		u.TLS.Name = HostOf(u.Hosts[0])
	}
	if path := o.Get("ca_file"); path != "" {
		if u.TLS.roots, err = reread.New(0, nil, reread.Pool, path); err != nil {
			return u.unread("ca_file", err)
		}
	}
	if cert, key := o.Get("cert_file"), o.Get("key_file"); cert != "" || key != "" {
		if u.TLS.pair, err = reread.New(0, nil, reread.Pair, cert, key); err != nil {
			return fmt.Errorf("read cert_file and key_file: %w", err)
		}
	}
	return nil
}

// Config returns the configuration for one new connection. If it is kept, so are its
// certificates.
func (t *TLS) Config() *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.Name, RootCAs: t.roots.Get()}
	if pair := t.pair.Get(); pair != nil {
		c.Certificates = []tls.Certificate{*pair}
	}
	return c
}

// Changed returns a value that stays equal as long as Config would return the same.
func (t *TLS) Changed() any {
	return [...]any{t.roots.Get(), t.pair.Get()}
}

// Dial connects by a dialer. If t has no server name, the certificate must match the address.
func (t *TLS) Dial(ctx context.Context, by *net.Dialer, network, address string) (net.Conn, error) {
	return (&tls.Dialer{NetDialer: by, Config: t.Config()}).DialContext(ctx, network, address)
}
