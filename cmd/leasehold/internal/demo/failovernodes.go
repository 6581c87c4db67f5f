package demo

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold/internal/storeurl"
	"github.com/redis/go-redis/v9"
)

// failoverNodes are the servers of one configuration.
type failoverNodes struct {
	urls      [2]string // URLs of the store, for the first and the second holder
	fail      func(ctx context.Context) error
	replicate func() error // lets the replica receive the primary's data
	ends      []func()
}

func (n *failoverNodes) close() {
	for _, end := range n.ends {
		end()
	}
}

// startNodes starts the servers of the run's configuration, or uses those of the user. On error
// none is left.
func (r *run) startNodes(ctx context.Context) (*failoverNodes, error) {
	n := &failoverNodes{replicate: func() error { return nil }}
	start := n.startPair
	switch scheme, _, _ := strings.Cut(r.stage.Store, ":"); {
	case r.strategy == redlock && scheme == "redlock":
		start = n.useRedlock
	case r.strategy == redlock:
		start = n.startRedlock
	case scheme == sentinelScheme:
		start = n.useSentinel
	}
	if err := start(ctx, r); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

// server starts a Redis server in a folder of its own.
func (n *failoverNodes) server(ctx context.Context, r *run, primary string) (*redisServer, error) {
	dir, err := os.MkdirTemp(r.stage.Dir, "redis-")
	if err != nil {
		return nil, err
	}
	s, err := startRedis(ctx, dir, primary)
	if err == nil {
		n.ends = append(n.ends, s.kill)
	}
	return s, err
}

// startPair starts a primary, and a replica that is in sync and then cut off.
func (n *failoverNodes) startPair(ctx context.Context, r *run) error {
	primary, err := n.server(ctx, r, "")
	if err != nil {
		return err
	}
	wire, err := newProxyLink("redis", "//"+primary.addr)
	if err != nil {
		return err
	}
	n.ends = append(n.ends, wire.close)
	replica, err := n.server(ctx, r, strings.TrimPrefix(wire.url(), "redis://"))
	if err != nil {
		return err
	}
	n.urls = [2]string{"redis://" + primary.addr, "redis://" + replica.addr}
	if r.strategy == replicas {
		n.urls[0] += "?replicas=1"
	}
	n.replicate = wire.mend
	n.fail = func(ctx context.Context) error {
		primary.kill()
		return replica.promote(ctx)
	}
	return wire.cut(r.order.TTL)
}

// startRedlock starts three servers. The first one will die.
func (n *failoverNodes) startRedlock(ctx context.Context, r *run) error {
	var hosts []string
	var first *redisServer
	for range 3 {
		s, err := n.server(ctx, r, "")
		if err != nil {
			return err
		}
		if first == nil {
			first = s
		}
		hosts = append(hosts, s.addr)
	}
	// Servers with a shorter uptime than min_uptime grant nothing. These servers never restart, so
	// they need none.
	url := "redlock://" + strings.Join(hosts, ",") + "?min_uptime=off"
	n.urls = [2]string{url, url}
	n.fail = func(context.Context) error {
		first.kill()
		return nil
	}
	return nil
}

// useRedlock uses the user's servers. It cannot kill a server, so it cuts the link to the first
// one.
func (n *failoverNodes) useRedlock(_ context.Context, r *run) error {
	wire, err := newProxyLinkTo(1, "redlock", strings.TrimPrefix(r.stage.Store, "redlock:"))
	if err != nil {
		return err
	}
	n.ends = append(n.ends, wire.close)
	n.urls = [2]string{wire.url(), wire.url()}
	n.fail = func(context.Context) error { return wire.cut(r.order.TTL) }
	return nil
}

const sentinelScheme = "redis+sentinel"

// useSentinel uses the user's servers. It cannot kill the primary, so it makes the sentinels
// promote a replica while the primary lives.
func (n *failoverNodes) useSentinel(ctx context.Context, r *run) error {
	_, hosts, path := hostsOf(strings.TrimPrefix(r.stage.Store, sentinelScheme+":"))
	name, options, _ := strings.Cut(strings.Trim(path, "/"), "?")
	name, _, _ = strings.Cut(name, "/") // a database may follow
	client := redis.NewSentinelClient(&redis.Options{Addr: storeurl.WithPort(hosts[0], "26379")})
	n.ends = append(n.ends, func() { client.Close() })
	url := r.stage.Store
	switch {
	case r.strategy != replicas || strings.Contains(options, "replicas="):
	case options == "":
		url += "?replicas=1"
	default:
		url += "&replicas=1"
	}
	n.urls = [2]string{url, url}
	n.fail = func(ctx context.Context) error { return failOver(ctx, client, name) }
	return client.GetMasterAddrByName(ctx, name).Err()
}

// failOver makes the sentinels choose another primary, and returns when they have. They refuse
// while an earlier failover is in progress.
func failOver(ctx context.Context, client *redis.SentinelClient, name string) error {
	ctx, cancel := context.WithTimeout(ctx, serverWithin)
	defer cancel()
	before, err := client.GetMasterAddrByName(ctx, name).Result()
	for err == nil {
		if err = client.Failover(ctx, name).Err(); err == nil || !strings.HasPrefix(err.Error(), "INPROG") {
			break
		}
		err = pause(ctx, writeEvery)
	}
	for after := before; err == nil && slices.Equal(after, before); {
		if err = pause(ctx, writeEvery); err == nil {
			after, err = client.GetMasterAddrByName(ctx, name).Result()
		}
	}
	if err != nil {
		return fmt.Errorf("have the sentinels fail over: %w", err)
	}
	return nil
}
