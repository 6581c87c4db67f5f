package serve

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/reread"
)

// recheck is how often files are looked at that may have changed.
const recheck = time.Second

// reloaded is what files say, or said a second ago. failed is told of changes that cannot be used; nil: nobody is.
func reloaded[T any](failed func(error), parse func(texts [][]byte) (T, error), paths ...string) (*reread.Files[T], error) {
	f, err := reread.New(recheck, parse, paths...)
	if err == nil && failed != nil {
		f.OnFailure(failed)
	}
	return f, err
}

// A TLSFiles has a server's certificate and the authorities of its clients in files, which it
// reads again when they change.
type TLSFiles struct {
	certificate *reread.Files[*tls.Certificate]
	clients     *reread.Files[*x509.CertPool] // nil: clients have no certificates
}

// ReadTLS reads a certificate, with its chain, and its key, and, unless clientCA is empty, the
// authorities that clients' certificates are to be of. failed is told of changes that cannot be
// read; then what was read before stays in use; nil: nobody is told.
func ReadTLS(certFile, keyFile, clientCA string, failed func(error)) (*TLSFiles, error) {
	f := &TLSFiles{}
	var err error
	if f.certificate, err = reloaded(failed, reread.Pair, certFile, keyFile); err != nil {
		return nil, fmt.Errorf("read the certificate: %w", err)
	}
	if clientCA == "" {
		return f, nil
	}
	if f.clients, err = reloaded(failed, reread.Pool, clientCA); err != nil {
		return nil, fmt.Errorf("read the clients' authorities %s: %w", clientCA, err)
	}
	return f, nil
}

// Config is for a listener. A client's certificate is checked if it has one; whether it needs
// one is a matter of who may what.
func (f *TLSFiles) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, Certificates: []tls.Certificate{*f.certificate.Get()}}
			if f.clients != nil {
				c.ClientCAs, c.ClientAuth = f.clients.Get(), tls.VerifyClientCertIfGiven
			}
			return c, nil
		},
	}
}
