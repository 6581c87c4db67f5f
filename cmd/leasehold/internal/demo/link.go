package demo

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/proxy"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

// A link is one process's connection to the lock store, which can be cut.
type link interface {
	url() string // URL of the store by way of the link
	// cut stops all traffic until mend. If that keeps every process from the store, it lasts only
	// until a lease of ttl has ended.
	cut(ttl time.Duration) error
	mend() error
	close()
}

// newLink creates a link to the store at url. The error wraps ErrSettings if the store's servers
// tell clients other addresses, which bypass the link.
func newLink(url string) (link, error) {
	scheme, rest, _ := strings.Cut(url, ":")
	switch scheme {
	case "sqlite":
		return newFileLink(url, rest)
	case "redis+sentinel", "redis+cluster":
		return nil, fmt.Errorf("%w: clients learn the addresses from the servers of %s:, so that no link to them can be cut", ErrSettings, scheme)
	case "kubernetes":
		return nil, fmt.Errorf("%w: the server's address stands in a file, so that no link to it can be cut", ErrSettings)
	case "s3":
		return newEndpointLink(scheme, rest)
	}
	return newProxyLink(scheme, rest)
}

// newEndpointLink creates a link to the server in the option endpoint.
func newEndpointLink(scheme, rest string) (*proxyLink, error) {
	before, options, _ := strings.Cut(rest, "?")
	values, err := url.ParseQuery(options)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSettings, err)
	}
	server, err := url.Parse(values.Get("endpoint"))
	if err != nil || server.Scheme != "http" {
		return nil, fmt.Errorf("%w: a link can be cut to an endpoint that begins with http: alone", ErrSettings)
	}
	p, err := proxy.Listen(storeurl.WithPort(server.Host, "80"))
	if err != nil {
		return nil, fmt.Errorf("make a link that can be cut: %w", err)
	}
	server.Host = p.Addr()
	values.Set("endpoint", server.String())
	return &proxyLink{address: scheme + ":" + before + "?" + values.Encode(), proxies: []*proxy.Proxy{p}}, nil
}

// A fileLink leads to a SQLite file. There is no connection to cut. But a program that does not
// finish its write has the same effect: nobody can renew.
type fileLink struct {
	address string
	db      *sql.DB

	mu      sync.Mutex
	writing *sql.Tx // guarded by mu; nil: the link is not cut
}

func newFileLink(url, path string) (*fileLink, error) {
	db, err := sql.Open("sqlite", sqliteDSN(path))
	if err != nil {
		return nil, fmt.Errorf("open the link's file: %w", err)
	}
	return &fileLink{address: url, db: db}, nil
}

func (l *fileLink) url() string { return l.address }

func (l *fileLink) cut(ttl time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, err := l.db.BeginTx(context.Background(), nil) // it takes the write lock of the file
	if err != nil {
		return fmt.Errorf("hold the file's write lock: %w", err)
	}
	l.writing = w
	time.AfterFunc(beyond(ttl), func() { l.mend() })
	return nil
}

func (l *fileLink) mend() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writing == nil {
		return nil
	}
	w := l.writing
	l.writing = nil
	return w.Rollback()
}

func (l *fileLink) close() {
	_ = l.mend() // Close ends the transaction anyway
	l.db.Close()
}

// A proxyLink is a proxy for each host of a server's URL. While it is cut, it holds back what
// arrives, like a network that drops packets and delivers them again later.
type proxyLink struct {
	address string
	proxies []*proxy.Proxy
}

// ports are the default ports of the stores.
var ports = map[string]string{
	"redis": "6379", "rediss": "6379", "redlock": "6379", "zookeeper": "2181", "etcd": "2379", "etcds": "2379",
	"postgres": "5432", "mysql": "3306", "memcached": "11211",
}

// newProxyLink creates a link to all servers of a URL. rest follows "scheme:".
func newProxyLink(scheme, rest string) (*proxyLink, error) {
	_, hosts, _ := hostsOf(rest)
	return newProxyLinkTo(len(hosts), scheme, rest)
}

// newProxyLinkTo creates a link to the first n servers. The others are reached directly.
func newProxyLinkTo(n int, scheme, rest string) (*proxyLink, error) {
	before, hosts, after := hostsOf(rest)
	l := &proxyLink{}
	name := hosts[0]
	for i, host := range hosts[:n] {
		p, err := proxy.Listen(storeurl.WithPort(host, ports[scheme]))
		if err != nil {
			l.close()
			return nil, fmt.Errorf("make a link that can be cut: %w", err)
		}
		hosts[i] = p.Addr()
		l.proxies = append(l.proxies, p)
	}
	l.address = scheme + ":" + before + strings.Join(hosts, ",") + withServerName(scheme, name, after)
	return l, nil
}

// hostsOf splits "//user@h1,h2/path?options" before and after its hosts.
func hostsOf(rest string) (before string, hosts []string, after string) {
	before = rest[:len(rest)-len(strings.TrimLeft(rest, "/"))]
	rest = rest[len(before):]
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		rest, after = rest[:i], rest[i:]
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		before, rest = before+rest[:at+1], rest[at+1:]
	}
	return before, strings.Split(rest, ","), after
}

// withServerName adds the server's name to the options in rest. A TLS client would otherwise use
// the host of the proxy.
func withServerName(scheme, host, rest string) string {
	secure := scheme == "rediss" || scheme == "etcds"
	for _, option := range []string{"tls=true", "ca_file=", "cert_file="} {
		secure = secure || strings.Contains(rest, option)
	}
	if !secure || strings.Contains(rest, "server_name=") {
		return rest
	}
	separator := "?"
	if strings.Contains(rest, "?") {
		separator = "&"
	}
	return rest + separator + "server_name=" + url.QueryEscape(storeurl.HostOf(host))
}

func (l *proxyLink) url() string { return l.address }

func (l *proxyLink) cut(time.Duration) error {
	for _, p := range l.proxies {
		p.Dark()
	}
	return nil
}

func (l *proxyLink) mend() error {
	for _, p := range l.proxies {
		p.Pass()
	}
	return nil
}

func (l *proxyLink) close() {
	for _, p := range l.proxies {
		p.Close()
	}
}
