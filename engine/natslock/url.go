package natslock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/reread"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

var urlForm = storeurl.Form{
	Schemes: []string{"nats"},
	Options: append([]string{"replicas", "server_clock", "creds_file", "monitor"}, storeurl.ServerOptions...),
}

// OpenURL returns a *Driver on the bucket of a URL once a server has answered. It does not
// create the bucket. Close closes the connection too.
//
//	nats://USER:PASSWORD@H1:PORT,H2,H3/BUCKET    nats://:TOKEN@H1/BUCKET
//
// The parameters are: server_clock=true for [Options.ServerClock]; monitor=H1:PORT,H2 for
// [Options.Monitors]; replicas for [CreateURL]; tls=true, ca_file, cert_file, key_file and
// server_name for TLS. password_file names a file with the password, and creds_file one with a
// JWT and a seed, as nsc writes it. Without either, the password is in LEASEHOLD_PASSWORD. Each
// new connection reads the files again. An error that matches [driver.ErrURL] means that the URL
// is invalid. No error has a password.
func OpenURL(ctx context.Context, url string) (driver.Driver, error) {
	d, _, err := openURL(url)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// CreateURL is [OpenURL], but creates the bucket if it is missing. The number of replicas is the
// URL's, or else 3 if it names three servers, or else 1.
func CreateURL(ctx context.Context, url string) (driver.Driver, error) {
	d, replicas, err := openURL(url)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, storeurl.FirstAnswer)
	defer cancel()
	if err := d.store.create(ctx, replicas); err != nil {
		d.Close() // its error would hide the first one
		return nil, err
	}
	return d, nil
}

// create creates the bucket if it is missing. A user who may only use the bucket may not be allowed
// to create it.
func (s *store) create(ctx context.Context, replicas int) error {
	ctx, end := s.asking(ctx, s.prefix()+s.api("STREAM.CREATE"))
	defer end()
	_, err := s.open(ctx)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return CreateBucket(ctx, s.js, s.bucket, replicas)
	}
	return explain(ctx, err)
}

func openURL(url string) (d *Driver, replicas int, err error) {
	u, err := storeurl.Parse(url, urlForm)
	if err != nil {
		return nil, 0, err
	}
	if len(u.Path) != 1 {
		return nil, 0, u.Wrong("takes one bucket after the hosts: nats://h1,h2,h3/locks")
	}
	if u.User != "" && !u.Password.IsSet() {
		return nil, 0, u.Wrong("has a user without a password")
	}
	replicas = 1
	if len(u.Hosts) >= 3 {
		replicas = 3
	}
	if text := u.Options.Get("replicas"); text != "" {
		if replicas, err = strconv.Atoi(text); err != nil || replicas < 1 || replicas > 5 {
			return nil, 0, u.Wrong("replicas is a number from 1 to 5")
		}
	}
	var o Options
	if o.ServerClock, err = u.Bool("server_clock", false); err != nil {
		return nil, 0, err
	}
	if text := u.Options.Get("monitor"); text != "" {
		for host := range strings.SplitSeq(text, ",") {
			if !strings.Contains(host, ":") {
				host += ":8222"
			}
			o.Monitors = append(o.Monitors, host)
		}
	}
	d, err = connect(u, &o)
	return d, replicas, err
}

// connect connects, and keeps trying while the driver is open.
func connect(u *storeurl.URL, o *Options) (*Driver, error) {
	hosts := u.HostPorts("4222")
	for i := range hosts {
		hosts[i] = "nats://" + hosts[i]
	}
	options, err := connection(u)
	if err != nil {
		return nil, err
	}
	own := &links.Links{}
	dialer := &dialer{Dialer: net.Dialer{Timeout: storeurl.FirstAnswer}, links: own}
	nc, err := nats.Connect(strings.Join(hosts, ","), append(options, nats.SetCustomDialer(dialer))...)
	if last := dialer.failed(); errors.Is(err, nats.ErrNoServers) && last != nil {
		err = fmt.Errorf("%w: %w", err, last)
	}
	if err != nil {
		return nil, explain(context.Background(), err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	d, err := New(js, u.Path[0], o)
	if err != nil {
		nc.Close()
		return nil, err
	}
	d.own, d.store.links = nc.Close, own
	return d, nil
}

// connection returns the options of the connection. Each new connection reads the secrets from
// them.
func connection(u *storeurl.URL) ([]nats.Option, error) {
	opts := []nats.Option{
		nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(), nats.ReconnectWait(250 * time.Millisecond), nats.Timeout(storeurl.FirstAnswer),
		nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2),
		nats.ReconnectBufSize(-1), // a message that cannot be sent now must not be sent later
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // failures are returned as errors of calls
	}
	switch path := u.Options.Get("creds_file"); {
	case path != "":
		creds, err := reread.New(0, nil, readCredentials, path)
		if err != nil {
			return nil, fmt.Errorf("read creds_file: %w", err)
		}
		opts = append(opts, nats.UserJWT(
			func() (string, error) { return creds.Get().jwt, nil },
			func(nonce []byte) ([]byte, error) { return creds.Get().key.Sign(nonce) }))
	case u.User != "":
		opts = append(opts, nats.UserInfoHandler(func() (user, password string) { return u.User, u.Password.Now() }))
	case u.Password.IsSet():
		opts = append(opts, nats.TokenHandler(u.Password.Now))
	}
	if u.TLS != nil {
		config := u.TLS.Config()
		config.ServerName = u.Options.Get("server_name") // "": each server's own name
		opts = append(opts, nats.Secure(config), func(o *nats.Options) error {
			o.RootCAsCB = func() (*x509.CertPool, error) { return u.TLS.Config().RootCAs, nil }
			if len(config.Certificates) > 0 {
				o.TLSCertCB = func() (tls.Certificate, error) { return u.TLS.Config().Certificates[0], nil }
			}
			return nil
		})
	}
	return opts, nil
}

// credentials are the contents of a creds_file.
type credentials struct {
	jwt string
	key nkeys.KeyPair
}

func readCredentials(texts [][]byte) (c credentials, err error) {
	if c.jwt, err = nkeys.ParseDecoratedJWT(texts[0]); err == nil {
		c.key, err = nkeys.ParseDecoratedUserNKey(texts[0])
	}
	return c, err
}

// A dialer remembers its last error.
type dialer struct {
	net.Dialer
	links *links.Links

	mu   sync.Mutex
	last error // guarded by mu
}

// Dial implements nats.CustomDialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.Dialer.Dial(network, address)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last = err; err != nil {
		return nil, err
	}
	return d.links.Add(conn), nil
}

func (d *dialer) failed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}
