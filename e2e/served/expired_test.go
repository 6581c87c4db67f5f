package served

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// certified writes a certificate that vouches for itself, valid for an hour before and after now, and returns it.
func certified(t *testing.T, dir, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert, private := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})
	put(t, filepath.Join(dir, name+".crt"), cert)
	put(t, filepath.Join(dir, name+".key"), private)
	pair, err := tls.X509KeyPair(cert, private)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func put(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func access(token string) []byte {
	hash := sha256.Sum256([]byte(token))
	all := `"rules":[{"prefix":"","rights":["view","lock","evict"]}]}`
	return []byte(`{"clients":[{"name":"t","tokens":["` + hex.EncodeToString(hash[:]) + `"],` + all + `,{"name":"c","certificates":["client"],` + all + `]}`)
}

// TestClockStepsAndWhoMayWhat: a certificate counts while it is valid by the instance's clock, on
// connections that are open as well; tokens, and that files are read again, are no matter of time.
func TestClockStepsAndWhoMayWhat(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	server, client := certified(t, dir, "server"), certified(t, dir, "client")
	put(t, in("access"), access("first"))
	roots := x509.NewCertPool()
	roots.AddCert(server.Leaf)
	caller := func(certificates ...tls.Certificate) *http.Client {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificates}}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	i := &instance{command: os.Getenv(binaryEnv), store: "memory:", port: servers.FreePorts(t, 1)[0], client: caller(), options: []string{
		"--tls-cert", in("server.crt"), "--tls-key", in("server.key"), "--client-ca", in("client.crt"), "--access", in("access"),
	}}
	i.startWithClock(t)
	t.Cleanup(i.kill)
	// may reports whether a renewal is served, which here finds nothing.
	may := func(c *http.Client, token string) bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+i.addr()+wire.Renew, strings.NewReader(`{"name":"n","owner":"o","ttl_ms":1000}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := c.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil { // else the next call has another connection
			t.Error(err)
		}
		return resp.StatusCode == http.StatusGone
	}
	tokens, open := caller(), caller(client)
	if !may(open, "") || !may(tokens, "first") {
		t.Fatal("not served while the clock is right")
	}
	last := "first"
	for n, offset := range []time.Duration{5 * time.Hour, -7 * time.Hour, 0, 1000 * time.Hour, 0} {
		i.set(t, offset)
		if got, want := may(open, ""), offset == 0; got != want {
			t.Errorf("at %v, by the connection that is open: %v", offset, got)
		}
		if got, want := may(caller(client), ""), offset == 0; got != want {
			t.Errorf("at %v, by a new connection: %v", offset, got)
		}
		next := fmt.Sprint("token ", n)
		put(t, in("access"), access(next))
		claimtest.Eventually(t, "the file is read again", func() bool { return may(tokens, next) })
		if may(tokens, last) {
			t.Errorf("at %v an old token counts", offset)
		}
		last = next
	}
}
