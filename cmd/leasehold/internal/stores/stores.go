// Package stores opens the engine that a store URL names. Each engine is one line of the
// table in this file and one function that opens it.
package stores

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
)

// An engine is one kind of store.
type engine struct {
	scheme string
	form   string // how its URL is written
	about  string // one line for people
	// open makes the driver. rest is the URL after "scheme:". It also returns rest in the
	// form that means the same in every folder.
	open func(ctx context.Context, rest string) (d driver.Driver, resolved string, err error)
}

// A preparer is a driver whose store must be made ready, or is slow to tell that it is not.
type preparer interface {
	// prepare creates what the store lacks if create is set. An error says that the store
	// cannot be used.
	prepare(ctx context.Context, create bool) error
}

// engines are the stores this command knows.
var engines = []engine{
	{"sqlite", "sqlite:PATH", "a file for the processes of this machine; sqlite: alone is your own file", openSQLite},
	{"redis", "redis://HOST/DB", "a Redis server; redis://USER:PASSWORD@HOST:PORT/DB?prefix=lock:&replicas=N&password_file=PATH", openRedis},
	{"rediss", "rediss://HOST/DB", "the same over TLS; more options: ca_file, cert_file and key_file, server_name", openRedisTLS},
	{"redis+sentinel", "redis+sentinel://H1,H2/NAME", "Redis behind sentinels that call it NAME", openRedisSentinel},
	{"redis+cluster", "redis+cluster://H1,H2", "a Redis Cluster", openRedisCluster},
	{"redlock", "redlock://H1,H2,H3", "a majority of independent Redis servers (Redlock)", openRedlock},
	{"postgres", "postgres://HOST/DB", "a PostgreSQL database; postgres://USER:PASSWORD@HOST:PORT/DB?prefix=leasehold_&pooled=true&listen=HOST:PORT", openPostgres},
	{"mysql", "mysql://HOST/DB", "a MySQL or MariaDB database; mysql://USER:PASSWORD@HOST:PORT/DB?prefix=leasehold_", openMySQL},
	{"zookeeper", "zookeeper://H1,H2,H3/CHROOT", "a ZooKeeper ensemble; zookeeper://USER:PASSWORD@H1,H2,H3/CHROOT?prefix=/leasehold; a session is 3/2 of --ttl", openZooKeeper},
	{"etcd", "etcd://H1,H2/PREFIX", "an etcd cluster; etcd://USER:PASSWORD@HOST:PORT/PREFIX?password_file=PATH", openEtcd},
	{"etcds", "etcds://H1,H2/PREFIX", "the same over TLS; more options: ca_file, cert_file and key_file, server_name", openEtcdTLS},
	{"memcached", "memcached://H1,H2", "memcached servers, each name on one of them; no fencing; ?prefix=lock:", openMemcached},
}

// Default is the store that is used when none is named.
const Default = "sqlite:"

// Local reports whether url is of a file, which only this machine has.
func Local(url string) bool {
	scheme, _, _ := strings.Cut(url, ":")
	return strings.EqualFold(scheme, "sqlite")
}

// Relative reports whether url is of a file whose path means another in another folder.
func Relative(url string) bool {
	_, path, _ := strings.Cut(url, ":")
	return Local(url) && path != "" && !strings.HasPrefix(path, "/")
}

// Open opens the store that url names and creates its file or tables where they are
// missing. It returns the driver, whose Close also closes the connections, and the URL in
// the form that means the same from every working directory. Errors contain no password.
func Open(ctx context.Context, url string) (driver.Driver, string, error) {
	return open(ctx, url, true)
}

// OpenExisting is Open for who asks about locks and takes none: a file or tables that are
// missing are an error, and stay so. Only the user's own file is created.
func OpenExisting(ctx context.Context, url string) (driver.Driver, string, error) {
	return open(ctx, url, false)
}

// open returns when ctx has ended, although not every client looks at it.
func open(ctx context.Context, url string, create bool) (driver.Driver, string, error) {
	e, rest, err := find(url)
	if err != nil {
		return nil, "", err
	}
	var d driver.Driver
	var resolved string
	opened := make(chan error, 1)
	go func() {
		var err error
		d, resolved, err = e.ready(ctx, rest, create)
		opened <- err
	}()
	select {
	case err = <-opened:
	case <-ctx.Done():
		go func() {
			if <-opened == nil {
				d.Close()
			}
		}()
		return nil, "", e.explain(url, context.Cause(ctx))
	}
	if err != nil {
		return nil, "", e.explain(url, err)
	}
	return d, e.scheme + ":" + resolved, nil
}

// ready makes the driver and prepares its store.
func (e engine) ready(ctx context.Context, rest string, create bool) (driver.Driver, string, error) {
	d, resolved, err := e.open(ctx, rest)
	if err != nil {
		return nil, "", err
	}
	if p, ok := d.(preparer); ok {
		if err := p.prepare(ctx, create); err != nil {
			go d.Close() // which may wait for a server that is silent, and for nothing else
			return nil, "", err
		}
	}
	return d, resolved, nil
}

// explain puts the URL in front of what is wrong with its servers; errors about files and
// URLs name them.
func (e engine) explain(url string, err error) error {
	if e.scheme == "sqlite" || errors.Is(err, ErrURL) {
		return err
	}
	return fmt.Errorf("%s: %w", Redact(url), err)
}

// find splits url at its scheme. Its errors repeat no other part of the URL.
func find(url string) (engine, string, error) {
	scheme, rest, ok := strings.Cut(url, ":")
	if !ok || !validScheme(scheme) {
		return engine{}, "", fmt.Errorf("%w: no scheme; known: %s", ErrURL, Known())
	}
	scheme = strings.ToLower(scheme)
	if scheme == "memory" {
		return engine{}, "", fmt.Errorf("%w: memory: is refused, because a lock in one process's memory excludes no other process; known: %s", ErrURL, Known())
	}
	i := slices.IndexFunc(engines, func(e engine) bool { return e.scheme == scheme })
	if i < 0 {
		return engine{}, "", fmt.Errorf("%w: unknown scheme %q; known: %s", ErrURL, scheme, Known())
	}
	return engines[i], rest, nil
}

// Known lists the forms of the URLs that Open takes, separated by commas.
func Known() string {
	forms := make([]string, len(engines))
	for i, e := range engines {
		forms[i] = e.form
	}
	return strings.Join(forms, ", ")
}

// Describe returns a line for each engine: its form and what it is.
func Describe() string {
	var b strings.Builder
	for _, e := range engines {
		fmt.Fprintf(&b, "  %-28s %s\n", e.form, e.about)
	}
	return b.String()
}
