package stores

import (
	"context"
	"errors"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/etcdlock"
)

// etcdOptions are what may stand after the "?" of an etcd URL.
var etcdOptions = []string{"prefix", "password_file", "ca_file", "cert_file", "key_file", "server_name", "tls"}

// etcdKeepAlive is how often a silent connection is asked whether it still stands, and how
// long it may take to answer: a member that hangs is left for another.
const (
	etcdKeepAlive   = 5 * time.Second
	etcdKeepAliveIn = 2 * time.Second
)

// etcdStore is a driver that closes its own connections.
type etcdStore struct {
	*etcdlock.Driver
	client *clientv3.Client
}

func (s etcdStore) Close() error {
	return errors.Join(s.Driver.Close(), s.client.Close())
}

func openEtcd(ctx context.Context, rest string) (driver.Driver, string, error) {
	return openEtcdAs(ctx, "etcd", rest)
}

func openEtcdTLS(ctx context.Context, rest string) (driver.Driver, string, error) {
	return openEtcdAs(ctx, "etcds", rest)
}

// openEtcdAs opens "//user:password@h1,h2/prefix?options". It sends nothing unless there
// is a password: then the client logs in.
func openEtcdAs(ctx context.Context, scheme, rest string) (driver.Driver, string, error) {
	u, err := parseServer(scheme, rest, etcdOptions, scheme == "etcds")
	if err != nil {
		return nil, "", err
	}
	opts, err := etcdPrefix(u)
	if err != nil {
		return nil, "", err
	}
	if (u.user == "") != (u.password == "") && u.user != "" {
		return nil, "", u.wrong("has a user without a password")
	}
	if u.user == "" {
		u.password = "" // of the environment, meant for another store
	}
	if u.tls != nil && u.options.Get("server_name") == "" {
		u.tls.ServerName = "" // each endpoint's own
	}
	hosts := withPorts(u.hosts, "2379")
	for i, host := range hosts {
		hosts[i] = map[bool]string{false: "http://", true: "https://"}[u.tls != nil] + host
	}
	client, err := newEtcdClient(ctx, clientv3.Config{
		Endpoints: hosts, Username: u.user, Password: u.password, TLS: u.tls,
		DialKeepAliveTime: etcdKeepAlive, DialKeepAliveTimeout: etcdKeepAliveIn, DialTimeout: contactBound,
		Logger: zap.NewNop(), // what goes wrong comes as an error
	})
	if err != nil {
		return nil, "", err
	}
	d, err := etcdlock.New(client, opts)
	if err != nil {
		client.Close() // its error would only hide the first
		return nil, "", u.wrong("%v", err)
	}
	return etcdStore{d, client}, u.text, nil
}

// newEtcdClient asks first whether any server is there: logging in would wait for one, and
// not say why there is none.
func newEtcdClient(ctx context.Context, config clientv3.Config) (*clientv3.Client, error) {
	if config.Username != "" {
		if err := reachEtcd(ctx, config); err != nil {
			return nil, err
		}
	}
	client, err := clientv3.New(config)
	return client, etcdlock.Explain(err)
}

func reachEtcd(ctx context.Context, config clientv3.Config) error {
	config.Username, config.Password = "", ""
	client, err := clientv3.New(config)
	if err != nil {
		return err
	}
	defer client.Close()
	d, err := etcdlock.New(client, nil)
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(ctx, contactBound)
	defer cancel()
	_, err = d.Inspect(ctx, "any")
	switch {
	case errors.Is(err, etcdlock.ErrUnreachable):
		return err
	case ctx.Err() != nil:
		return silent(err)
	}
	return nil // a server has answered, if only that it wants a user
}

// etcdPrefix is the path of the URL, or the option, which may begin with a slash or be empty.
func etcdPrefix(u *serverURL) (*etcdlock.Options, error) {
	prefix, given := u.options["prefix"]
	if given && len(u.path) > 0 {
		return nil, u.wrong("a path and the option prefix exclude each other")
	}
	if !given {
		return &etcdlock.Options{Prefix: strings.Join(u.path, "/")}, nil
	}
	return &etcdlock.Options{Prefix: prefix[0], NoPrefix: prefix[0] == ""}, nil
}
