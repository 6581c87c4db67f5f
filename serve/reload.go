package serve

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/reread"
)

// recheck is how often files are checked for changes.
const recheck = time.Second

// TLSFiles are files with a server's certificate and the authorities of its clients. They are
// reread when they change.
type TLSFiles struct {
	certificate *reread.Files[*tls.Certificate]
	clients     *reread.Files[*x509.CertPool] // nil: clients have no certificates
}

// ReadTLS reads a certificate, with its chain, and its key. Unless clientCA is empty, it also reads
// the authorities that must have signed clients' certificates. If a change cannot be read, it calls
// failed, unless that is nil, and the earlier contents stay in use.
func ReadTLS(certFile, keyFile, clientCA string, failed func(error)) (*TLSFiles, error) {
	f := &TLSFiles{}
	var err error
	if f.certificate, err = reread.New(recheck, failed, reread.Pair, certFile, keyFile); err != nil {
		return nil, fmt.Errorf("read the certificate: %w", err)
	}
	if clientCA == "" {
		return f, nil
	}
	if f.clients, err = reread.New(recheck, failed, reread.Pool, clientCA); err != nil {
		return nil, fmt.Errorf("read the clients' authorities %s: %w", clientCA, err)
	}
	return f, nil
}

// Config returns the configuration of a listener. A client's certificate is verified if it has one.
// Whether it needs one depends on its rights.
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
