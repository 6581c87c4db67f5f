package storeurl_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

// A server speaks TLS, and identifies its clients.
type server struct {
	net.Listener
	mu     sync.Mutex
	config *tls.Config // guarded by mu
	seen   chan string // the name of each client that is known
}

func serve(t *testing.T) *server {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{Listener: l, seen: make(chan string, 1)}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { s.greet(c) })
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return s
}

func (s *server) greet(c net.Conn) {
	defer c.Close()
	s.mu.Lock()
	t := tls.Server(c, s.config)
	s.mu.Unlock()
	_ = t.SetDeadline(time.Now().Add(time.Minute))
	if t.Handshake() != nil {
		return
	}
	name := ""
	if certs := t.ConnectionState().PeerCertificates; len(certs) > 0 {
		name = certs[0].Subject.CommonName
	}
	_, _ = t.Write([]byte{byte(len(name))})
	_, _ = t.Write([]byte(name))
}

// shows makes the server present a certificate from now on, and accept clients of an authority.
func (s *server) shows(t *testing.T, clients *servers.Authority, cert, key []byte) {
	t.Helper()
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(clients.PEM())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven}
}

// ask connects, and returns the name by which the server knows the client.
func ask(t *testing.T, u *storeurl.URL, address string) (string, error) {
	t.Helper()
	c, err := u.TLS.Dial(t.Context(), &net.Dialer{}, "tcp", address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	b := make([]byte, 256)
	if _, err := c.Read(b[:1]); err != nil {
		return "", err
	}
	n := int(b[0])
	for got := 0; got < n; {
		k, err := c.Read(b[got:n])
		if err != nil {
			return "", err
		}
		got += k
	}
	return string(b[:n]), nil
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func parse(t *testing.T, url string) *storeurl.URL {
	t.Helper()
	u, err := storeurl.Parse(url, storeurl.Form{Schemes: []string{"as"}, Secure: []string{"as"}, Options: storeurl.ServerOptions})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// Only the right server is accepted, whichever authority is current.
func TestOnlyTheRightServer(t *testing.T) {
	t.Parallel()
	ours, alien := servers.NewAuthority(t, "ours"), servers.NewAuthority(t, "alien")
	ca, s := filepath.Join(t.TempDir(), "ca"), serve(t)
	write(t, ca, alien.PEM()) // it is replaced by ours before it is used
	at := "as://" + s.Addr().String() + "?ca_file=" + ca
	byAddress, byName, several := parse(t, at), parse(t, at+"&server_name=one.test"), parse(t, "as://h1,h2?ca_file="+ca)
	write(t, ca, ours.PEM())
	for what, c := range map[string]struct {
		issue             func() (cert, key []byte)
		byAddress, byName bool
	}{
		"the right one":    {func() (_, _ []byte) { return ours.Issue("s", "one.test") }, true, true},
		"another name":     {func() (_, _ []byte) { return ours.Issue("s", "two.test") }, true, false},
		"another address":  {func() (_, _ []byte) { return ours.IssueElsewhere("one.test") }, false, true},
		"a name in common": {func() (_, _ []byte) { return ours.IssueElsewhere("127.0.0.1") }, false, false},
		"expired":          {func() (_, _ []byte) { return ours.IssueExpired("s") }, false, false},
		"alien":            {func() (_, _ []byte) { return alien.Issue("s", "one.test") }, false, false},
	} {
		cert, key := c.issue()
		s.shows(t, ours, cert, key)
		for name, u := range map[string]*storeurl.URL{"by address": byAddress, "by name": byName, "one of several": several} {
			want := c.byAddress
			if u == byName {
				want = c.byName
			}
			_, err := ask(t, u, s.Addr().String())
			_, refused := errors.AsType[*tls.CertificateVerificationError](err)
			if (err == nil) != want || refused == want {
				t.Errorf("%s, %s: %v; want %v", what, name, err, want)
			}
		}
	}
}

// The authorities and the certificate are those in the files when a connection is made. If a file
// is damaged, the last valid ones stay.
func TestCertificatesOfTheMoment(t *testing.T) {
	t.Parallel()
	first, second := servers.NewAuthority(t, "first"), servers.NewAuthority(t, "second")
	dir, s := t.TempDir(), serve(t)
	ca, cert, key := filepath.Join(dir, "ca"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	oneCert, oneKey := first.Issue("one")
	twoCert, twoKey := second.Issue("two")
	write(t, ca, first.PEM())
	write(t, cert, oneCert)
	write(t, key, oneKey)
	u := parse(t, "as://"+s.Addr().String()+"?ca_file="+ca+"&cert_file="+cert+"&key_file="+key)
	by := func(a *servers.Authority) func() {
		return func() { c, k := a.Issue("s"); s.shows(t, a, c, k) }
	}
	half := func(text []byte) []byte { return text[:len(text)/2] }
	before := u.TLS.Changed()
	for i, step := range []struct {
		do   func()
		want string // the client's name; "": the server does not know it; "-": it is refused
	}{
		{by(first), "one"},
		{func() { write(t, ca, half(first.PEM())) }, "one"},
		{func() { write(t, ca, nil) }, "one"},
		{func() { write(t, ca, append(first.PEM(), half(second.PEM())...)) }, "one"},
		{func() { os.Remove(ca) }, "one"},
		{by(second), "-"},                                                   // its authority is not there yet
		{func() { write(t, ca, append(first.PEM(), second.PEM()...)) }, ""}, // the server does not know this client
		{func() { write(t, cert, twoCert) }, ""},                            // its key is not there yet
		{by(first), "one"},
		{func() { write(t, key, twoKey); by(second)() }, "two"},
		{func() { write(t, ca, second.PEM()) }, "two"},
		{func() { write(t, cert, half(twoCert)) }, "two"},
		{func() { os.Remove(key) }, "two"},
		{by(first), "-"}, // no authority any more
	} {
		step.do()
		name, err := ask(t, u, s.Addr().String())
		if _, refused := errors.AsType[*tls.CertificateVerificationError](err); refused {
			name, err = "-", nil
		}
		if name != step.want || err != nil {
			t.Errorf("step %d: %q, %v; want %q", i, name, err, step.want)
		}
	}
	if after := u.TLS.Changed(); after == before || after != u.TLS.Changed() {
		t.Error("Changed does not tell")
	}
}

// A password is the one in the file when it is used. If the file is empty, the last one stays.
func TestPasswordOfTheMoment(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pw")
	write(t, path, []byte("one\n"))
	u := parse(t, "as://u@h?password_file="+path)
	for i, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, "one"}, {func() { write(t, path, nil) }, "one"}, {func() { write(t, path, []byte("\n")) }, "one"},
		{func() { os.Remove(path) }, "one"}, {func() { write(t, path, []byte("two")) }, "two"},
	} {
		step.do()
		if got := u.Password.Now(); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
	var text bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		text.WriteString(fmt.Sprintf(verb, u.Password))
	}
	if bytes.Contains(text.Bytes(), []byte("two")) {
		t.Errorf("printed: %s", &text)
	}
}
