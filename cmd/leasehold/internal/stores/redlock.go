package stores

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/redislock"
)

// redlockStore is a driver that closes its own connections.
type redlockStore struct {
	*redislock.Redlock
	clients []redis.UniversalClient
	contact *contact
}

func (s redlockStore) prepare(ctx context.Context, _ bool) error {
	return s.contact.make(ctx, s.clients...)
}

func (s redlockStore) Close() error {
	return errors.Join(s.Redlock.Close(), closeAll(s.clients))
}

func closeAll(clients []redis.UniversalClient) (err error) {
	for _, c := range clients {
		err = errors.Join(err, c.Close())
	}
	return err
}

// openRedlock takes each host for a server of its own, all with the same user, password
// and options.
func openRedlock(_ context.Context, rest string) (driver.Driver, string, error) {
	u, err := parseRedis("redlock", rest)
	if err != nil {
		return nil, "", err
	}
	if len(u.path) > 1 {
		return nil, "", u.wrong("takes a database number after the hosts and nothing more")
	}
	db, err := u.database(0)
	if err != nil {
		return nil, "", err
	}
	if u.options.Has("replicas") {
		return nil, "", u.wrong("replicas is for one server; here the majority of the hosts counts")
	}
	redis.SetLogger(quiet{}) // what goes wrong comes as an error
	prefix, given := u.options["prefix"]
	opts := &redislock.Options{Prefix: strings.Join(prefix, "")}
	opts.NoPrefix = given && opts.Prefix == ""
	if u.options.Has("rest") {
		return nil, "", u.wrong("rest is for one server, Sentinel or Cluster")
	}
	if text := u.options.Get("memory"); text != "" {
		if opts.Memory, err = time.ParseDuration(text); err != nil || opts.Memory == 0 {
			return nil, "", u.wrong("memory is no length of time, such as 5m")
		}
	}
	first := &contact{}
	var clients []redis.UniversalClient
	for _, host := range u.hosts {
		clients = append(clients, redis.NewClient(&redis.Options{
			Addr: withPort(host, "6379"), Username: u.user, Password: u.password, DB: db, TLSConfig: u.tls,
			DialerRetryBackoff: first.dialPause,
		}))
	}
	d, err := redislock.NewRedlock(clients, opts, nil)
	if err != nil {
		closeAll(clients) // its error would only hide the first
		return nil, "", u.wrong("%v", err)
	}
	return redlockStore{d, clients, first}, u.text, nil
}
