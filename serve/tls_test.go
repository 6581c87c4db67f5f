package serve_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// An authority creates certificates in files.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.make("ca", "the authority", 1, nil)
	return a
}

// make writes name.crt and name.key.
func (a *authority) make(name, common string, serial int64, by *authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: common}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: by == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
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
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	a.write(name+".key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}))
	return cert, key
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name string, text []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.path(name), text, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// Certificates are those in the files now, and a client's certificate identifies it.
func TestCertificatesAreReloaded(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.make("server", "server", 2, a)
	a.make("client", "ci.internal", 3, a)
	a.make("stranger", "stranger", 4, a)
	access := a.path("access")
	a.write("access", []byte(fmt.Sprintf(`{"clients":[{"name":"ci","certificates":["ci.internal"],"tokens":[%q],"rules":[{"prefix":"","rights":["view","lock"]}]}]}`, hash("the token"))))
	may, err := serve.ReadAccess(access, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	files, err := serve.ReadTLS(a.path("server.crt"), a.path("server.key"), a.path("ca.crt"), func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	url := listen(t, &serve.Options{Client: may.Client}, files.Config())

	options := "?ca_file=" + a.path("ca.crt")
	as := func(name string) string {
		return url + options + "&cert_file=" + a.path(name+".crt") + "&key_file=" + a.path(name+".key")
	}
	a.write("token", []byte("the token\n"))
	for store, ok := range map[string]bool{
		as("client"): true, as("stranger"): false, url + options: false, url: false, url + options + "&password_file=" + a.path("token"): true,
	} {
		d, err := httplock.OpenURL(t.Context(), store)
		if (err == nil) != ok {
			t.Errorf("%s: %v", store, err)
		}
		if err == nil {
			d.Close()
		}
	}
	if got := serialAt(t, url); got != 2 {
		t.Errorf("serial number %d", got)
	}
	a.make("server", "server", 5, a)
	eventually(t, "the new certificate", func() bool { return serialAt(t, url) == 5 })
	a.write("server.crt", []byte("a slip"))
	time.Sleep(1500 * time.Millisecond) // longer than until the next reading
	if got := serialAt(t, url); got != 5 {
		t.Errorf("serial number %d after a slip", got)
	}
}

// listen serves https on a free port and returns its URL.
func listen(t *testing.T, opts *serve.Options, config *tls.Config) string {
	t.Helper()
	d := memory.New()
	s, err := serve.New(d, opts)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: s}
	served := make(chan error, 1)
	go func() { served <- web.Serve(l) }()
	t.Cleanup(func() { web.Close(); <-served; s.Close(); d.Close() })
	return "https://" + l.Addr().String()
}

// serialAt returns the serial number of the certificate that a server presents.
func serialAt(t *testing.T, url string) int64 {
	t.Helper()
	c, err := tls.Dial("tcp", url[len("https://"):], &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}
