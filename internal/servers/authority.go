package servers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"testing"
	"time"
)

// An Authority signs certificates for tests.
type Authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{t: t}
	template := a.template(name, time.Hour)
	template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	a.cert, a.key = a.sign(template)
	return a
}

// PEM returns the authority's own certificate.
func (a *Authority) PEM() []byte { return encode("CERTIFICATE", a.cert.Raw) }

// Issue makes a certificate with that common name, and its key. It is for 127.0.0.1 and hosts.
func (a *Authority) Issue(name string, hosts ...string) (cert, key []byte) {
	a.t.Helper()
	return a.issue(a.template(name, time.Hour), true, hosts...)
}

// IssueElsewhere makes a certificate for hosts, but not for 127.0.0.1.
func (a *Authority) IssueElsewhere(hosts ...string) (cert, key []byte) {
	a.t.Helper()
	return a.issue(a.template("elsewhere", time.Hour), false, hosts...)
}

// IssueExpired makes a certificate that has expired.
func (a *Authority) IssueExpired(name string) (cert, key []byte) {
	a.t.Helper()
	return a.issue(a.template(name, -time.Minute), true)
}

// template has no serial number, so that x509 chooses a random one for each certificate.
func (a *Authority) template(name string, lasts time.Duration) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lasts),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

func (a *Authority) issue(template *x509.Certificate, here bool, hosts ...string) (cert, key []byte) {
	a.t.Helper()
	template.DNSNames = hosts
	if here {
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	made, private := a.sign(template)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return encode("CERTIFICATE", made.Raw), encode("PRIVATE KEY", der)
}

// sign makes a certificate signed by the authority. The first one, its own, is self-signed.
func (a *Authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
