package servers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
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
	template := a.template(name, time.Now().Add(time.Hour))
	template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	a.cert, a.key = a.sign(template, nil)
	return a
}

// PEM is the authority's own certificate.
func (a *Authority) PEM() []byte { return encode("CERTIFICATE", a.cert.Raw) }

// Issue makes a certificate for a server or client of that name, at 127.0.0.1 and the hosts, and its key.
func (a *Authority) Issue(name string, hosts ...string) (cert, key []byte) {
	a.t.Helper()
	template := a.template(name, time.Now().Add(time.Hour))
	template.IPAddresses, template.DNSNames = []net.IP{net.IPv4(127, 0, 0, 1)}, hosts
	return a.issue(template)
}

// IssueElsewhere makes one that is not for 127.0.0.1.
func (a *Authority) IssueElsewhere(hosts ...string) (cert, key []byte) {
	a.t.Helper()
	template := a.template("elsewhere", time.Now().Add(time.Hour))
	template.DNSNames = hosts
	return a.issue(template)
}

// IssueExpired makes one whose time is over.
func (a *Authority) IssueExpired(name string) (cert, key []byte) {
	a.t.Helper()
	template := a.template(name, time.Now().Add(-time.Minute))
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	return a.issue(template)
}

func (a *Authority) template(name string, until time.Time) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		a.t.Fatal(err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

func (a *Authority) issue(template *x509.Certificate) (cert, key []byte) {
	a.t.Helper()
	made, private := a.sign(template, a)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return encode("CERTIFICATE", made.Raw), encode("PRIVATE KEY", der)
}

// sign makes a certificate that by signs; nil: itself.
func (a *Authority) sign(template *x509.Certificate, by *Authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
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
