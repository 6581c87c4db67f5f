package etcdlock

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

var urlForm = storeurl.Form{
	Schemes: []string{"etcd", "etcds"},
	Secure:  []string{"etcds"},
	Options: append([]string{"prefix"}, storeurl.ServerOptions...),
}

// pingEvery is how often a silent connection is probed, and pingWithin how long the answer may
// take. A member that hangs is then replaced by another.
const (
	pingEvery  = 5 * time.Second
	pingWithin = 2 * time.Second
)

// OpenURL returns a *Driver on the cluster of a URL. Close closes the connections too. OpenURL
// sends nothing unless there is a password: then the client logs in.
//
//	etcd://USER:PASSWORD@H1:PORT,H2,H3/PREFIX    etcds: over TLS
//
// The parameters tls=true, ca_file, cert_file, key_file and server_name configure TLS. prefix
// may begin with a slash; an empty one is [Options.NoPrefix]. password_file names a file with
// the password. A user without either has the password in LEASEHOLD_PASSWORD. Each connection
// and each login reads the files again. An error that matches [driver.ErrURL] means that the URL
// is invalid. No error has a password.
func OpenURL(ctx context.Context, url string) (driver.Driver, error) {
	u, err := storeurl.Parse(url, urlForm)
	if err != nil {
		return nil, err
	}
	opts, err := urlPrefix(u)
	if err != nil {
		return nil, err
	}
	if u.User != "" && !u.Password.IsSet() {
		return nil, u.Wrong("has a user without a password")
	}
	if u.User == "" {
		u.Password = storeurl.Secret{} // it is from the environment, and meant for another store
	}
	own := &links.Links{}
	client, err := urlClient(ctx, u, own)
	if err != nil {
		return nil, err
	}
	d, err := New(client, opts)
	if err != nil {
		client.Close() // its error would hide the first one
		return nil, u.Wrong("%v", err)
	}
	d.links = own
	return d, nil
}

func urlConfig(u *storeurl.URL, own *links.Links) clientv3.Config {
	scheme := "http://"
	if u.TLS != nil {
		scheme = "https://"
		u.TLS.Name = u.Options.Get("server_name") // "": each endpoint's own name
	}
	endpoints := u.HostPorts("2379")
	for i := range endpoints {
		endpoints[i] = scheme + endpoints[i]
	}
	config := clientv3.Config{
		Endpoints: endpoints, Username: u.User, Password: u.Password.Now(),
		DialKeepAliveTime: pingEvery, DialKeepAliveTimeout: pingWithin, DialTimeout: storeurl.FirstAnswer,
		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(watching(u.TLS, own))},
		Logger:      zap.NewNop(), // failures are returned as errors
	}
	if u.TLS != nil {
		config.TLS = u.TLS.Config() // makes the client use TLS
	}
	return config
}

// urlClient first checks that a server answers. A login would wait for one, and not say why there
// is none.
func urlClient(ctx context.Context, u *storeurl.URL, own *links.Links) (*clientv3.Client, error) {
	config := urlConfig(u, own)
	if config.Username != "" {
		if err := reach(ctx, config); err != nil {
			return nil, err
		}
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, Explain(err)
	}
	client.Auth = &logins{Auth: client.Auth, password: u.Password}
	return client, nil
}

// logins lets the client log in with the current password, when a token has ended and for each
// stream. If the password is refused, it does not try endlessly.
type logins struct {
	clientv3.Auth
	password storeurl.Secret
	pace     storeurl.Logins
}

// Authenticate implements [clientv3.Auth]. The client passes the password that it began with.
func (l *logins) Authenticate(ctx context.Context, user, _ string) (*clientv3.AuthenticateResponse, error) {
	if err := l.pace.Begin(); err != nil {
		return nil, err
	}
	token, err := l.Auth.Authenticate(ctx, user, l.password.Now())
	l.pace.Ended(err, errors.Is(rpctypes.Error(err), rpctypes.ErrAuthFailed))
	return token, err
}

func reach(ctx context.Context, config clientv3.Config) error {
	config.Username, config.Password = "", ""
	client, err := clientv3.New(config)
	if err != nil {
		return err
	}
	defer client.Close()
	d, err := New(client, nil)
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := storeurl.Waiting(ctx)
	defer cancel()
	_, err = d.Inspect(ctx, "any")
	return unreached(ctx, err)
}

// unreached returns err, the error of a call, if no server has answered the call.
func unreached(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, ErrUnreachable):
		return err
	case err != nil && ctx.Err() != nil:
		return storeurl.Silent(ctx, err)
	}
	return nil // a server has answered, even if it demands a user
}

// urlPrefix returns the prefix from the URL's path or option, which may begin with a slash or be
// empty.
func urlPrefix(u *storeurl.URL) (*Options, error) {
	prefix, given := u.Options["prefix"]
	if given && len(u.Path) > 0 {
		return nil, u.Wrong("a path and the option prefix exclude each other")
	}
	if !given {
		return &Options{Prefix: strings.Join(u.Path, "/")}, nil
	}
	return &Options{Prefix: prefix[0], NoPrefix: prefix[0] == ""}, nil
}
