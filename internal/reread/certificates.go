package reread

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
)

// Pair is a certificate, with its chain, and the key that matches it.
func Pair(texts [][]byte) (*tls.Certificate, error) {
	if err := whole(texts[0]); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(texts[0], texts[1])
	return &pair, err
}

// Pool returns the authorities in one file.
func Pool(texts [][]byte) (*x509.CertPool, error) {
	if err := whole(texts[0]); err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(texts[0]) {
		return nil, errors.New("there is no certificate in it")
	}
	return pool, nil
}

// whole refuses a text that ends within a block: parsers of certificates skip such a block.
func whole(text []byte) error {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		text = rest
	}
	if strings.Contains(string(text), "-----BEGIN") {
		return errors.New("it ends within a certificate")
	}
	return nil
}
