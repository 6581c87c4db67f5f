package redislock

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/rehearsal"
)

// Check asks every primary for its version, its settings that locks depend on, and the time. It
// needs the same rights as locks. Only to report how often the server writes to disk does it
// need the right to CONFIG GET.
func (d *Driver) Check(ctx context.Context) ([]driver.Finding, error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	found, err := eachPrimary(ctx, d, d.checkNode)
	return found, explain(err)
}

func (d *Driver) checkNode(ctx context.Context, node redis.UniversalClient) ([]driver.Finding, error) {
	where := address(node)
	text, err := node.Info(ctx, "server", "memory", "persistence", "replication").Result()
	switch {
	case redis.IsPermissionError(err):
		return []driver.Finding{{About: driver.AboutServer, Where: where, Level: driver.Weak,
			Text: "the user may not ask for INFO, so that the server's settings are not known", Advice: "grant +info"}}, nil
	case err != nil:
		return nil, err
	}
	info := parseInfo(text)
	if err := checkVersion(info["redis_version"]); err != nil {
		return nil, err
	}
	found := []driver.Finding{versionFinding(info), evictionFinding(info), d.persistenceFinding(ctx, node, info), d.replicasFinding(info)}
	for i := range found {
		found[i].Where = where
	}
	before := time.Now()
	now, err := node.Time(ctx).Result()
	switch {
	case redis.IsPermissionError(err): // the rehearsal reports it
	case err != nil:
		return found, err
	default:
		found = append(found, driver.ClockFinding(where, before, now, time.Now()))
	}
	return found, nil
}

func versionFinding(info map[string]string) driver.Finding {
	version := "Redis " + info["redis_version"]
	if info["valkey_version"] != "" {
		version = "Valkey " + info["valkey_version"]
	}
	return driver.Finding{About: driver.AboutVersion, Text: version}
}

func evictionFinding(info map[string]string) driver.Finding {
	f := driver.Finding{About: driver.AboutEviction, Text: "maxmemory-policy is " + cmp.Or(info["maxmemory_policy"], "not told")}
	if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" {
		f.Level, f.Advice = driver.Weak, "set it to noeviction"
		f.Text += ": the server may evict locks that are held"
	}
	return f
}

// persistenceFinding reports what a restart loses. With MinUptime, as in a Redlock, that is no
// weakness: the server grants nothing until lost leases cannot matter any more.
func (d *Driver) persistenceFinding(ctx context.Context, node redis.UniversalClient, info map[string]string) driver.Finding {
	f := driver.Finding{About: driver.AboutPersistence}
	if info["aof_enabled"] == "0" {
		f.Text = "appendonly is no"
		if d.o.MinUptime > 0 {
			f.Text += fmt.Sprintf("; after a restart the server grants nothing for %v", d.o.MinUptime)
			return f
		}
		f.Level, f.Advice = driver.Weak, "set appendonly to yes and appendfsync to always"
		f.Text += ": a restart forgets who holds what, and lets a second holder in"
		return f
	}
	how, err := node.ConfigGet(ctx, "appendfsync").Result()
	f.Text = "appendonly is yes"
	switch sync := how["appendfsync"]; {
	case err != nil || sync == "": // CONFIG GET is not permitted, or the answer is empty
	case sync == "always" || d.o.MinUptime > 0:
		f.Text += ", appendfsync " + sync
	default:
		f.Level, f.Advice = driver.Weak, "set appendfsync to always where that counts"
		f.Text += ", appendfsync " + sync + ": when the machine crashes, the server forgets what it granted last"
	}
	return f
}

func (d *Driver) replicasFinding(info map[string]string) driver.Finding {
	f := driver.Finding{About: driver.AboutReplicas, Text: "no replicas"}
	n := info["connected_slaves"]
	switch {
	case info["role"] == "slave":
		f.Level, f.Advice = driver.Unfit, "connect to the primary, or through Sentinel"
		f.Text = "the server is a replica"
	case n != "" && n != "0" && d.o.Replicas == 0:
		f.Level, f.Advice = driver.Weak, "have grants wait for replicas: replicas=1 in the URL"
		f.Text = fmt.Sprintf("it has %s %s and Options.Replicas is 0: a failover may let a second holder in", n, plural(n, "replica"))
	case d.o.Replicas > 0:
		f.Text = fmt.Sprintf("grants wait for %d of %s %s", d.o.Replicas, n, plural(n, "replica"))
	}
	return f
}

func plural(n, word string) string {
	if n == "1" {
		return word
	}
	return word + "s"
}

// Rehearse takes, renews and releases a lock on a random name, and removes its history. A user
// without the right to remove it leaves it for a day.
func (d *Driver) Rehearse(ctx context.Context) error {
	name, ttl := rehearsal.Name(), rehearsal.TTL
	if d.o.MinUptime > 0 {
		ttl = min(ttl, d.o.MinUptime)
	}
	err := rehearsal.Run(ctx, name, ttl, d.Claim)
	ending, cancel := rehearsal.Ending(ctx)
	defer cancel()
	history := d.keysOf(name).companion(kindHistory)
	_, _ = d.ask(ending, history, d.pipelines.newCall(nil, "DEL", history))
	return err
}
