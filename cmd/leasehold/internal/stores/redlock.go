package stores

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/quorum"
	"github.com/leasehold-go/leasehold/redislock"
)

// redlockStore is a quorum that closes its nodes and their connections.
type redlockStore struct {
	*quorum.Driver
	nodes []redisStore
}

func (s redlockStore) Close() error {
	errs := []error{s.Driver.Close()}
	for _, n := range s.nodes {
		errs = append(errs, n.Close())
	}
	return errors.Join(errs...)
}

// openRedlock makes a node of each host, all with the same user, password and options.
func openRedlock(_ context.Context, rest string) (driver.Driver, string, error) {
	u, err := parseRedis("redlock", rest)
	if err != nil {
		return nil, "", err
	}
	if len(u.path) > 1 {
		return nil, "", u.wrong("takes a database number after the hosts and nothing more")
	}
	if u.options.Has("replicas") {
		return nil, "", u.wrong("replicas is for one server; here the majority of the hosts counts")
	}
	db, err := u.database(0)
	if err != nil {
		return nil, "", err
	}
	redis.SetLogger(quiet{}) // what goes wrong comes as an error
	prefix, given := u.options["prefix"]
	opts := &redislock.Options{Prefix: strings.Join(prefix, ""), Memory: redislock.DefaultMemory}
	opts.NoPrefix = given && opts.Prefix == ""
	var s redlockStore
	var nodes []driver.Driver
	for _, host := range u.hosts {
		client := redis.NewClient(&redis.Options{
			Addr: withPort(host, "6379"), Username: u.user, Password: u.password, DB: db, TLSConfig: u.tls,
		})
		d, err := redislock.New(client, opts)
		if err != nil {
			return nil, "", u.wrong("%v", err)
		}
		s.nodes = append(s.nodes, redisStore{d, client})
		nodes = append(nodes, d)
	}
	if s.Driver, err = quorum.New(nodes, nil); err != nil {
		for _, n := range s.nodes {
			n.Close() // its error would only hide the first
		}
		return nil, "", u.wrong("%v", err)
	}
	return s, u.text, nil
}
