package redislock

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

// urlForm is the form of URLs for one server, Sentinel, Cluster and Redlock.
var urlForm = storeurl.Form{
	Schemes: []string{"redis", "rediss", "redis+sentinel", "redis+cluster", "redlock"},
	Secure:  []string{"rediss"},
	Options: append([]string{"prefix", "replicas", "rest", "min_uptime"}, storeurl.ServerOptions...),
}

// OpenURL returns a driver on the servers of a URL once they have answered: a *Driver, or a
// *Redlock for redlock:. Close closes the connections too.
//
//	redis://USER:PASSWORD@HOST:PORT/DB       one server; rediss: over TLS
//	redis+sentinel://H1,H2,H3/PRIMARY/DB     behind sentinels that call it PRIMARY
//	redis+cluster://H1,H2                    a Redis Cluster
//	redlock://H1,H2,H3/DB                    independent servers, of which more than half must agree
//
// The parameters prefix, replicas, rest and min_uptime are the fields of Options; min_uptime=off
// is NoMinUptime. tls=true, ca_file, cert_file, key_file and server_name configure TLS.
// password_file names a file with the password; without one it is in LEASEHOLD_PASSWORD. Each
// new connection reads the files again. An error that matches [driver.ErrURL] means that the URL
// is invalid. No error has a password.
func OpenURL(ctx context.Context, url string) (driver.Driver, error) {
	s, err := openURL(url)
	if err != nil {
		return nil, err
	}
	if err := s.contact.make(ctx, s.clients...); err != nil {
		go s.driver.Close() // waits for calls to a silent server, which nobody needs to wait for
		return nil, err
	}
	return s.driver, nil
}

// opened is what a URL names: a driver and its clients. Their servers may not have been reached
// yet.
type opened struct {
	driver  driver.Driver
	clients []redis.UniversalClient
	contact *contact
}

// openURL creates the driver. Its only I/O is to read files that the URL names.
func openURL(url string) (*opened, error) {
	u, err := storeurl.Parse(url, urlForm)
	if err != nil {
		return nil, err
	}
	opts, err := urlOptions(u)
	if err != nil {
		return nil, err
	}
	s := &opened{contact: &contact{}}
	if s.clients, err = urlClients(u, s.contact); err != nil {
		return nil, err
	}
	if s.driver, err = driverOf(u.Scheme, s.clients, opts); err != nil {
		for _, c := range s.clients {
			c.Close() // its error would hide the first one
		}
		return nil, u.Wrong("%v", err)
	}
	return s, nil
}

// driverOf returns the driver on clients. Its Close closes them.
func driverOf(scheme string, clients []redis.UniversalClient, opts *Options) (driver.Driver, error) {
	if scheme != "redlock" {
		d, err := New(clients[0], opts)
		if err != nil {
			return nil, err
		}
		d.ownClient = true
		return d, nil
	}
	r, err := NewRedlock(clients, opts, nil)
	if err != nil {
		return nil, err
	}
	for _, d := range r.nodes {
		d.ownClient = true
	}
	return r, nil
}

func urlOptions(u *storeurl.URL) (*Options, error) {
	o := &Options{Prefix: u.Options.Get("prefix")}
	o.NoPrefix = u.Options.Has("prefix") && o.Prefix == ""
	var err error
	if text := u.Options.Get("replicas"); text != "" {
		if o.Replicas, err = strconv.Atoi(text); err != nil || o.Replicas < 0 {
			return nil, u.Wrong("replicas is no number of servers")
		}
	}
	if text := u.Options.Get("rest"); text != "" {
		if o.Rest, err = time.ParseDuration(text); err != nil {
			return nil, u.Wrong("rest is no duration such as 50ms")
		}
	}
	switch text := u.Options.Get("min_uptime"); text {
	case "":
	case "off":
		o.NoMinUptime = true
	default:
		if o.MinUptime, err = time.ParseDuration(text); err != nil || o.MinUptime <= 0 {
			return nil, u.Wrong("min_uptime is off, or a length of time such as 5m")
		}
	}
	return o, nil
}

// urlClients returns the client of a URL, or of a Redlock one for each host.
func urlClients(u *storeurl.URL, first *contact) ([]redis.UniversalClient, error) {
	switch u.Scheme {
	case "redis+sentinel":
		return urlSentinel(u, first)
	case "redis+cluster":
		return urlCluster(u, first)
	case "redlock":
	default:
		if len(u.Hosts) != 1 {
			return nil, u.Wrong("takes one host; for more there are redis+sentinel:, redis+cluster: and redlock:")
		}
	}
	return urlServers(u, first)
}

// urlServers returns a client for each host, all with the same user, password and options.
func urlServers(u *storeurl.URL, first *contact) (clients []redis.UniversalClient, err error) {
	if len(u.Path) > 1 {
		return nil, u.Wrong("takes a database number and nothing more")
	}
	db, err := urlDatabase(u, 0)
	if err != nil {
		return nil, err
	}
	for _, addr := range u.HostPorts("6379") {
		clients = append(clients, redis.NewClient(&redis.Options{
			Addr: addr, CredentialsProviderContext: credentials(u), DB: db, Dialer: dialTLS(u.TLS),
			DialerRetryBackoff: first.dialPause,
		}))
	}
	return clients, nil
}

func urlSentinel(u *storeurl.URL, first *contact) ([]redis.UniversalClient, error) {
	if len(u.Path) < 1 || len(u.Path) > 2 {
		return nil, u.Wrong("takes the primary's name after the hosts, and then a database number: redis+sentinel://h1,h2,h3/mymaster/0")
	}
	db, err := urlDatabase(u, 1)
	if err != nil {
		return nil, err
	}
	return []redis.UniversalClient{redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: u.Path[0], SentinelAddrs: u.HostPorts("26379"), CredentialsProviderContext: credentials(u), DB: db, Dialer: dialTLS(u.TLS),
		DialerRetryBackoff: first.dialPause,
	})}, nil
}

func urlCluster(u *storeurl.URL, first *contact) ([]redis.UniversalClient, error) {
	if len(u.Path) > 0 {
		return nil, u.Wrong("takes no database: a cluster has one")
	}
	return []redis.UniversalClient{redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: u.HostPorts("6379"), CredentialsProviderContext: credentials(u), Dialer: dialTLS(u.TLS),
		DialerRetryBackoff: first.dialPause,
	})}, nil
}

// credentials returns a function that each new connection calls for user and password.
func credentials(u *storeurl.URL) func(context.Context) (user, password string, err error) {
	return func(context.Context) (string, string, error) { return u.User, u.Password.Now(), nil }
}

// dialTLS returns a dialer for TLS, which reads the certificates for each connection; nil: the
// servers do not use TLS.
func dialTLS(t *storeurl.TLS) func(ctx context.Context, network, address string) (net.Conn, error) {
	if t == nil {
		return nil
	}
	by := &net.Dialer{Timeout: storeurl.FirstAnswer}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return t.Dial(ctx, by, network, address)
	}
}

// urlDatabase returns the number at place i of the path, or 0 if there is none.
func urlDatabase(u *storeurl.URL, i int) (int, error) {
	if len(u.Path) <= i {
		return 0, nil
	}
	db, err := strconv.Atoi(u.Path[i])
	if err != nil || db < 0 {
		return 0, u.Wrong("the database is no number")
	}
	return db, nil
}
