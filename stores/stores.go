// Package stores opens any engine by its URL, for programs whose configuration names the engine.
// It depends on the clients of all engines. A program that uses a single engine can call that
// engine's OpenURL instead.
//
//	d, err := stores.Open(ctx, "redis://locker@lock.internal/0?password_file=/etc/app/password")
//	locks, err := leasehold.New(d, nil)
//
// The password of a server is in the URL, in the file that password_file names, or in the
// environment variable LEASEHOLD_PASSWORD. Files with passwords and certificates are reread for new
// connections, so they may be replaced while the process runs. The clients of SQL databases are
// pgx, go-sql-driver/mysql and modernc.org/sqlite.
package stores

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/engine/kubelock"
	"github.com/leasehold-go/leasehold/engine/memcachelock"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/engine/s3lock"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

// ErrURL: the URL cannot be used as it is written. Errors of the store itself do not match it.
var ErrURL = driver.ErrURL

// PasswordVariable is the environment variable with the password of a store whose URL has none.
const PasswordVariable = storeurl.PasswordVariable

// A Scheme is one kind of store.
type Scheme struct {
	Name  string // before the colon
	Form  string // the form of its URL
	About string // one line for people
}

// An engine opens and resolves the URLs of one scheme.
type engine struct {
	Scheme
	open    opener
	resolve func(url string) (string, error)
}

// An opener opens a store. If create is true, it creates what the store lacks.
type opener func(ctx context.Context, url string, create bool) (driver.Driver, error)

// from returns an opener for an engine that never creates anything.
func from(openURL func(context.Context, string) (driver.Driver, error)) opener {
	return func(ctx context.Context, url string, _ bool) (driver.Driver, error) { return openURL(ctx, url) }
}

// creating returns an opener for an engine that may have to create what the URL names.
func creating(openURL, createURL func(context.Context, string) (driver.Driver, error)) opener {
	return func(ctx context.Context, url string, create bool) (driver.Driver, error) {
		if create {
			return createURL(ctx, url)
		}
		return openURL(ctx, url)
	}
}

// asItIs resolves URLs that mean the same in every working directory.
func asItIs(url string) (string, error) { return url, nil }

var engines = []engine{
	{Scheme{"sqlite", "sqlite:PATH", "a SQLite file on this machine; sqlite: alone is one in your home directory"}, openSQLite, resolveSQLite},
	{Scheme{"redis", "redis://HOST/DB", "a Redis server; redis://USER:PASSWORD@HOST:PORT/DB?prefix=lock:&replicas=N&password_file=PATH"}, from(redislock.OpenURL), storeurl.Resolve},
	{Scheme{"rediss", "rediss://HOST/DB", "the same over TLS; more options: ca_file, cert_file and key_file, server_name"}, from(redislock.OpenURL), storeurl.Resolve},
	{Scheme{"redis+sentinel", "redis+sentinel://H1,H2/NAME", "the Redis primary that the sentinels call NAME"}, from(redislock.OpenURL), storeurl.Resolve},
	{Scheme{"redis+cluster", "redis+cluster://H1,H2", "a Redis Cluster"}, from(redislock.OpenURL), storeurl.Resolve},
	{Scheme{"redlock", "redlock://H1,H2,H3", "a majority of independent Redis servers (Redlock)"}, from(redislock.OpenURL), storeurl.Resolve},
	{Scheme{"postgres", "postgres://HOST/DB", "a PostgreSQL database; postgres://USER:PASSWORD@HOST:PORT/DB?prefix=leasehold_&pooled=true&listen=HOST:PORT"}, openPostgres, storeurl.Resolve},
	{Scheme{"mysql", "mysql://HOST/DB", "a MySQL or MariaDB database; mysql://USER:PASSWORD@HOST:PORT/DB?prefix=leasehold_"}, openMySQL, storeurl.Resolve},
	{Scheme{"zookeeper", "zookeeper://H1,H2,H3/CHROOT", "a ZooKeeper ensemble; zookeeper://USER:PASSWORD@H1,H2,H3/CHROOT?prefix=/leasehold; a session is 3/2 of the TTL"}, from(zklock.OpenURL), storeurl.Resolve},
	{Scheme{"etcd", "etcd://H1,H2/PREFIX", "an etcd cluster; etcd://USER:PASSWORD@HOST:PORT/PREFIX?password_file=PATH"}, from(etcdlock.OpenURL), storeurl.Resolve},
	{Scheme{"etcds", "etcds://H1,H2/PREFIX", "the same over TLS; more options: ca_file, cert_file and key_file, server_name"}, from(etcdlock.OpenURL), storeurl.Resolve},
	{Scheme{"nats", "nats://H1,H2,H3/BUCKET", "a key-value bucket of NATS JetStream; nats://USER:PASSWORD@HOST:PORT/BUCKET?replicas=N&creds_file=PATH&tls=true"}, creating(natslock.OpenURL, natslock.CreateURL), storeurl.Resolve},
	{Scheme{"s3", "s3://BUCKET/PREFIX", "a bucket of S3 or of a compatible store; s3://KEY:SECRET@BUCKET/PREFIX?region=R&endpoint=https://HOST:PORT"}, from(s3lock.OpenURL), storeurl.Resolve},
	{Scheme{"kubernetes", "kubernetes://NAMESPACE", "Leases in a namespace, with kubectl's configuration or the pod's own account; kubernetes://NAMESPACE?kubeconfig=PATH&context=NAME"}, from(kubelock.OpenURL), storeurl.ResolveNoUser},
	{Scheme{"http", "http://HOST:PORT", "a leasehold serve, and the store behind it"}, from(httplock.OpenURL), storeurl.Resolve},
	{Scheme{"https", "https://HOST:PORT", "the same over TLS; https://:TOKEN@HOST:PORT, or ?password_file=PATH; more options: ca_file, cert_file and key_file, server_name"}, from(httplock.OpenURL), storeurl.Resolve},
	{Scheme{"memcached", "memcached://H1,H2", "memcached servers, each with a share of the names; no fencing; ?prefix=lock:"}, from(memcachelock.OpenURL), asItIs},
}

// Schemes returns the kinds of stores that Open supports.
func Schemes() []Scheme {
	all := make([]Scheme, len(engines))
	for i, e := range engines {
		all[i] = e.Scheme
	}
	return all
}

// Open opens the store that url names, and creates its file, tables or bucket where they are missing.
// Close of the driver also closes the connections. Open returns when ctx has ended. It fails if a
// server of Redis, a SQL database, NATS, or etcd with a password cannot be reached. With other
// engines, the first call of the driver fails instead. Errors contain no password.
func Open(ctx context.Context, url string) (driver.Driver, error) {
	return open(ctx, url, true)
}

// OpenExisting is [Open] for programs that ask about locks and take none. It creates no tables, no
// bucket and no file but the user's own; if they are missing, it fails.
func OpenExisting(ctx context.Context, url string) (driver.Driver, error) {
	d, err := open(ctx, url, false)
	if none, ok := errors.AsType[*noTables](err); ok {
		go none.store.Close() // in the background, because it may wait for a server that does not answer
	}
	return d, err
}

// OpenToLook is [OpenExisting] for programs that examine the store itself. It creates nothing, not
// even the user's own file. With [ErrNoTables] it returns the driver too, because Check and Rehearse
// need no tables. The driver's other calls fail with an error that [NoTables] recognizes.
func OpenToLook(ctx context.Context, url string) (driver.Driver, error) {
	url, err := Resolve(url) // which names the user's own file like any other
	if err != nil {
		return nil, err
	}
	d, err := open(ctx, url, false)
	if none, ok := errors.AsType[*noTables](err); ok {
		return none.store, err
	}
	return d, err
}

// Resolve returns url in a form that means the same in every working directory. It includes the
// password of the environment, so it is a secret. Resolve opens nothing, and does not find every
// mistake in url.
func Resolve(url string) (string, error) {
	e, err := find(url)
	if err != nil {
		return "", err
	}
	return e.resolve(url)
}

// Redact returns url in a form that may be printed, even if it is malformed. In doubt it hides more.
func Redact(url string) string { return storeurl.Redact(url) }

// WithoutPassword returns a URL of [Resolve] with its user, but without its password.
func WithoutPassword(resolved string) string { return storeurl.WithoutPassword(resolved) }

// HasPassword reports whether a URL that [Resolve] understands contains a readable password.
func HasPassword(url string) bool { return storeurl.HasPassword(url) }

// open opens the store that url names. It returns when ctx has ended, even though some clients
// ignore their context.
func open(ctx context.Context, url string, create bool) (driver.Driver, error) {
	e, err := find(url)
	if err != nil {
		return nil, err
	}
	d, err := abandon.Terms[driver.Driver]{Late: closeLate}.Call(ctx, func() (driver.Driver, error) { return e.open(ctx, url, create) })
	switch {
	case err == nil:
		return d, nil
	case err == ctx.Err():
		err = context.Cause(ctx)
	}
	return nil, e.explain(url, err)
}

// closeLate closes a store that was opened after open had returned.
func closeLate(d driver.Driver, err error) {
	if none, ok := errors.AsType[*noTables](err); ok {
		d = none.store
	}
	if d != nil {
		d.Close()
	}
}

// explain adds the URL to an error of its servers. Errors about files and URLs name them already.
func (e engine) explain(url string, err error) error {
	if e.Name == "sqlite" || errors.Is(err, ErrURL) {
		return err
	}
	return fmt.Errorf("%s: %w", Redact(url), err)
}

// find returns the engine of a URL. Its errors contain only the scheme, because the rest may be
// secret.
func find(url string) (engine, error) {
	scheme, _, ok := storeurl.Cut(url)
	if !ok {
		return engine{}, fmt.Errorf("%w: no scheme; known: %s", ErrURL, known())
	}
	if scheme == "memory" {
		return engine{}, fmt.Errorf("%w: memory: is refused, because a lock in one process's memory excludes no other process; known: %s", ErrURL, known())
	}
	i := slices.IndexFunc(engines, func(e engine) bool { return e.Name == scheme })
	if i < 0 {
		return engine{}, fmt.Errorf("%w: unknown scheme %q; known: %s", ErrURL, scheme, known())
	}
	return engines[i], nil
}

func known() string {
	forms := make([]string, len(engines))
	for i, e := range engines {
		forms[i] = e.Form
	}
	return strings.Join(forms, ", ")
}
