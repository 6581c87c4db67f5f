package storeurl

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
)

// TLSOptions are the options about TLS.
var TLSOptions = []string{"ca_file", "cert_file", "key_file", "server_name", "tls"}

// makeTLS turns TLS on where the scheme or an option speaks of it.
func (u *URL) makeTLS(on bool) error {
	o := u.Options
	for _, key := range []string{"ca_file", "cert_file", "key_file", "server_name"} {
		on = on || o.Get(key) != ""
	}
	asked, err := u.Bool("tls", false)
	if err != nil || !on && !asked {
		return err
	}
	u.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.Get("server_name")}
	if u.TLS.ServerName == "" && len(u.Hosts) == 1 {
		u.TLS.ServerName, _, _ = net.SplitHostPort(withPort(u.Hosts[0], "0"))
	}
	if path := o.Get("ca_file"); path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read ca_file: %w", err)
		}
		u.TLS.RootCAs = x509.NewCertPool()
		if !u.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return u.Wrong("ca_file has no certificate")
		}
	}
	if cert, key := o.Get("cert_file"), o.Get("key_file"); cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return fmt.Errorf("read cert_file and key_file: %w", err)
		}
		u.TLS.Certificates = []tls.Certificate{pair}
	}
	return nil
}
