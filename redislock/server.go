package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
)

// MinVersion is the oldest Redis that serves the scripts: flags in the first line (7.0)
// let renewals and releases through when memory is short. Valkey reports 7.2.4 or newer.
const MinVersion = "7.0"

// checkVersion asks the server for its version, once. A user who may not ask goes on:
// an old server then refuses the scripts.
func (d *Driver) checkVersion(ctx context.Context) error {
	if d.supported.Load() {
		return nil
	}
	info, err := d.info(ctx, "server")
	switch {
	case redis.IsPermissionError(err):
	case err != nil:
		return err
	case !newEnough(info["redis_version"]):
		return fmt.Errorf("%w: it is %q", ErrOldServer, info["redis_version"])
	}
	d.supported.Store(true)
	return nil
}

func newEnough(version string) bool {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	return err == nil && n >= 7
}

// info returns one section of INFO, from any node of a cluster.
func (d *Driver) info(ctx context.Context, section string) (map[string]string, error) {
	var text string
	err := d.links.first.do(ctx, func(ctx context.Context) (err error) {
		text, err = d.client.Info(ctx, section).Result()
		return err
	})
	if err != nil {
		return nil, explain(err)
	}
	return parseInfo(text), nil
}

func parseInfo(text string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[key] = value
		}
	}
	return fields
}

// Identify returns the server's run id, which changes with every restart. A cluster has
// none: ErrUnsupported.
func (d *Driver) Identify(ctx context.Context) (id string, err error) {
	if _, cluster := d.client.(*redis.ClusterClient); cluster {
		return "", fmt.Errorf("redislock: identity of a cluster: %w", driver.ErrUnsupported)
	}
	info, err := d.info(ctx, "server")
	if err != nil {
		return "", err
	}
	if info["run_id"] == "" {
		return "", errors.New("redislock: INFO tells no run_id")
	}
	return info["run_id"], nil
}

// Check returns warnings about a configuration that weakens what a lock promises. It
// asks every primary. An error means that it could not ask.
func (d *Driver) Check(ctx context.Context) ([]string, error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var warnings []string
	err := d.eachPrimary(ctx, func(ctx context.Context, node redis.UniversalClient) error {
		text, err := node.Info(ctx, "memory", "replication").Result()
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, w := range d.warnings(parseInfo(text)) {
			if address := address(node); address != "" {
				w = address + ": " + w
			}
			warnings = append(warnings, w)
		}
		return nil
	})
	if err != nil {
		return nil, explain(err)
	}
	return warnings, nil
}

func (d *Driver) warnings(info map[string]string) (all []string) {
	if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" {
		all = append(all, fmt.Sprintf("maxmemory-policy is %s: the server may evict locks that are held; set it to noeviction", policy))
	}
	if n := info["connected_slaves"]; n != "" && n != "0" && d.replicas == 0 {
		all = append(all, fmt.Sprintf("it has %s replicas and Options.Replicas is 0: a failover may let a second holder in", n))
	}
	return all
}

func address(node redis.UniversalClient) string {
	if c, ok := node.(*redis.Client); ok {
		return c.Options().Addr
	}
	return ""
}

// eachPrimary calls f for every primary of a cluster, or for the one server.
func (d *Driver) eachPrimary(ctx context.Context, f func(context.Context, redis.UniversalClient) error) error {
	return d.links.first.do(ctx, func(ctx context.Context) error {
		if cluster, ok := d.client.(*redis.ClusterClient); ok {
			return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return f(ctx, node) })
		}
		return f(ctx, d.client)
	})
}
