package stores

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/redislock"
)

// redisOptions are what may stand after the "?" of a Redis URL.
var redisOptions = []string{"prefix", "replicas", "password_file", "ca_file", "cert_file", "key_file", "server_name", "tls", "memory", "rest"}

// redisStore is a driver that closes its own connections.
type redisStore struct {
	*redislock.Driver
	client  redis.UniversalClient
	contact *contact
}

func (s redisStore) prepare(ctx context.Context, _ bool) error {
	return s.contact.make(ctx, s.client)
}

func (s redisStore) Close() error {
	return errors.Join(s.Driver.Close(), s.client.Close())
}

func openRedis(_ context.Context, rest string) (driver.Driver, string, error) {
	return openRedisAs("redis", rest, redisServer)
}

func openRedisTLS(_ context.Context, rest string) (driver.Driver, string, error) {
	return openRedisAs("rediss", rest, redisServer)
}

func openRedisSentinel(_ context.Context, rest string) (driver.Driver, string, error) {
	return openRedisAs("redis+sentinel", rest, redisSentinel)
}

func openRedisCluster(_ context.Context, rest string) (driver.Driver, string, error) {
	return openRedisAs("redis+cluster", rest, redisCluster)
}

// openRedisAs makes the client that connect describes.
func openRedisAs(scheme, rest string, connect func(*serverURL, *contact) (redis.UniversalClient, error)) (driver.Driver, string, error) {
	u, err := parseRedis(scheme, rest)
	if err != nil {
		return nil, "", err
	}
	replicas := 0
	if text := u.options.Get("replicas"); text != "" {
		if replicas, err = strconv.Atoi(text); err != nil || replicas < 0 {
			return nil, "", u.wrong("replicas is no number of servers")
		}
	}
	first := &contact{}
	client, err := connect(u, first)
	if err != nil {
		return nil, "", err
	}
	redis.SetLogger(quiet{}) // what goes wrong comes as an error
	prefix, given := u.options["prefix"]
	opts := &redislock.Options{Replicas: replicas, Prefix: strings.Join(prefix, "")}
	opts.NoPrefix = given && opts.Prefix == ""
	d, err := restingDriver(u, client, opts)
	if err != nil {
		client.Close() // its error would only hide the first
		return nil, "", u.wrong("%v", err)
	}
	return redisStore{d, client, first}, u.text, nil
}

// restingDriver is redislock.New with the rest that the URL asks for.
func restingDriver(u *serverURL, client redis.UniversalClient, opts *redislock.Options) (*redislock.Driver, error) {
	if text := u.options.Get("rest"); text != "" {
		var err error
		if opts.Rest, err = time.ParseDuration(text); err != nil {
			return nil, errors.New("rest is no duration such as 50ms")
		}
	}
	return redislock.New(client, opts)
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func redisServer(u *serverURL, first *contact) (redis.UniversalClient, error) {
	if len(u.hosts) != 1 {
		return nil, u.wrong("takes one host; for more there are redis+sentinel: and redis+cluster:")
	}
	if len(u.path) > 1 {
		return nil, u.wrong("takes a database number after the host and nothing more")
	}
	db, err := u.database(0)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(&redis.Options{
		Addr: withPort(u.hosts[0], "6379"), Username: u.user, Password: u.password, DB: db, TLSConfig: u.tls,
		DialerRetryBackoff: first.dialPause,
	}), nil
}

func redisSentinel(u *serverURL, first *contact) (redis.UniversalClient, error) {
	if len(u.path) < 1 || len(u.path) > 2 {
		return nil, u.wrong("takes the primary's name after the hosts, and then a database number: redis+sentinel://h1,h2,h3/mymaster/0")
	}
	db, err := u.database(1)
	if err != nil {
		return nil, err
	}
	return redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: u.path[0], SentinelAddrs: withPorts(u.hosts, "26379"), Username: u.user, Password: u.password, DB: db, TLSConfig: u.tls,
		DialerRetryBackoff: first.dialPause,
	}), nil
}

func redisCluster(u *serverURL, first *contact) (redis.UniversalClient, error) {
	if len(u.path) > 0 {
		return nil, u.wrong("takes no database: a cluster has one")
	}
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: withPorts(u.hosts, "6379"), Username: u.user, Password: u.password, TLSConfig: u.tls,
		DialerRetryBackoff: first.dialPause,
	}), nil
}

// database is the number at place i of the path, 0 without one.
func (u *serverURL) database(i int) (int, error) {
	if len(u.path) <= i {
		return 0, nil
	}
	db, err := strconv.Atoi(u.path[i])
	if err != nil || db < 0 {
		return 0, u.wrong("the database is no number")
	}
	return db, nil
}

func parseRedis(scheme, rest string) (*serverURL, error) {
	return parseServer(scheme, rest, redisOptions, scheme == "rediss")
}
