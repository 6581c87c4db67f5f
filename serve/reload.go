package serve

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// recheck is how often files are looked at that may have changed.
const recheck = time.Second

// reloaded is what files say. A change that cannot be read leaves what they said before, and
// is told to failed, once.
type reloaded[T any] struct {
	paths  []string
	parse  func() (T, error)
	failed func(error)

	mu      sync.Mutex
	value   T         // guarded by mu
	stamp   string    // guarded by mu; of the files that were read last
	checked time.Time // guarded by mu
}

// load reads the files for the first time.
func load[T any](parse func() (T, error), paths ...string) (*reloaded[T], error) {
	r := &reloaded[T]{paths: paths, parse: parse, failed: func(error) {}}
	var err error
	r.stamp, r.checked = r.stamps(), time.Now()
	r.value, err = parse()
	return r, err
}

// get returns what the files say, or said a second ago.
func (r *reloaded[T]) get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.checked) < recheck {
		return r.value
	}
	r.checked = time.Now()
	stamp := r.stamps()
	if stamp == r.stamp {
		return r.value
	}
	r.stamp = stamp
	if value, err := r.parse(); err != nil {
		r.failed(err)
	} else {
		r.value = value
	}
	return r.value
}

// tells has failed told, unless it is nil.
func (r *reloaded[T]) tells(failed func(error)) {
	if failed != nil {
		r.failed = failed
	}
}

// stamps changes when what the files say does. Their times do not tell: a file may replace another
// with the same time, and one hash another of the same length.
func (r *reloaded[T]) stamps() (all string) {
	for _, path := range r.paths {
		text, err := os.ReadFile(path)
		all += fmt.Sprintln(err == nil, sha256.Sum256(text))
	}
	return all
}

// A TLSFiles has a server's certificate and the authorities of its clients in files, which it
// reads again when they change.
type TLSFiles struct {
	certificate *reloaded[*tls.Certificate]
	clients     *reloaded[*x509.CertPool] // nil: clients have no certificates
}

// ReadTLS reads a certificate, with its chain, and its key, and, unless clientCA is empty, the
// authorities that clients' certificates are to be of. failed is told of changes that cannot be
// read; then what was read before stays in use; nil: nobody is told.
func ReadTLS(certFile, keyFile, clientCA string, failed func(error)) (*TLSFiles, error) {
	f := &TLSFiles{}
	var err error
	f.certificate, err = load(func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			err = fmt.Errorf("read the certificate: %w", err)
		}
		return &c, err
	}, certFile, keyFile)
	if err != nil {
		return nil, err
	}
	f.certificate.tells(failed)
	if clientCA == "" {
		return f, nil
	}
	if f.clients, err = load(func() (*x509.CertPool, error) { return readPool(clientCA) }, clientCA); err != nil {
		return nil, err
	}
	f.clients.tells(failed)
	return f, nil
}

func readPool(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the clients' authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("read the clients' authorities: there is no certificate in " + path)
	}
	return pool, nil
}

// Config is for a listener. A client's certificate is checked if it has one; whether it needs
// one is a matter of who may what.
func (f *TLSFiles) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, Certificates: []tls.Certificate{*f.certificate.get()}}
			if f.clients != nil {
				c.ClientCAs, c.ClientAuth = f.clients.get(), tls.VerifyClientCertIfGiven
			}
			return c, nil
		},
	}
}
