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

// MinVersion is the oldest Redis that runs the scripts. Flags in the first line of a script
// (7.0) let renewals and releases through when memory is short. Valkey reports 7.2.4 or newer.
const MinVersion = "7.0"

// checkVersion refuses a server that is too old. It is called for each new connection.
func checkVersion(version string) error {
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 7 {
		return fmt.Errorf("%w: it is %q", ErrOldServer, version)
	}
	return nil
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

// Identify returns the server's run id, which changes with every restart. A cluster has none: it
// returns ErrUnsupported.
func (d *Driver) Identify(ctx context.Context) (id string, err error) {
	if d.pipelines.cluster != nil {
		return "", fmt.Errorf("redislock: identity of a cluster: %w", driver.ErrUnsupported)
	}
	info, err := d.ask(ctx, "", d.pipelines.newCall(nil, "INFO", "server"))
	if err != nil {
		return "", err
	}
	if id = parseInfo(text(info.reply))["run_id"]; id == "" {
		return "", errors.New("redislock: INFO tells no run_id")
	}
	return id, nil
}

func address(node redis.UniversalClient) string {
	if c, ok := node.(*redis.Client); ok {
		return c.Options().Addr
	}
	return ""
}

// eachPrimary calls f for every primary of a cluster, or for the one server, and returns the
// results of all.
func eachPrimary[T any](ctx context.Context, d *Driver, f func(context.Context, redis.UniversalClient) ([]T, error)) ([]T, error) {
	return abandonable(ctx, d.pipelines.life, func(ctx context.Context) ([]T, error) {
		if d.pipelines.cluster == nil {
			return f(ctx, d.client)
		}
		var mu sync.Mutex
		var all []T
		err := d.pipelines.cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			found, err := f(ctx, node)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, found...)
			return err
		})
		return all, err
	})
}
