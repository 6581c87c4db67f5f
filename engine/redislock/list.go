package redislock

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pages"
	"github.com/leasehold-go/leasehold/internal/several"
)

const (
	// mostScanned is the most keys that one SCAN looks at. It takes the server a millisecond at
	// most.
	mostScanned = 1000
	// leastScanned is the fewest, however few names are wanted.
	leastScanned = 20
	// keysEach is how many keys a held lock has: the lock key and the history.
	keysEach = 2
	// mostLeft is how many bytes of names a cursor carries. They were found but exceed the page. A
	// cursor is part of URLs.
	mostLeft = 1000
	// mostScans is how many SCANs a page takes at most. It returns then even if few names have the
	// prefix.
	mostScans = 16
	// shownTogether is how many names one script shows. It takes a fraction of a millisecond,
	// unless many wait.
	shownTogether = 25
	// askedAtOnce is how many such scripts run at once.
	askedAtOnce = 4
)

// List implements [driver.Operator]. It scans all keys of all primaries in small steps, in the
// order of their hash tables. A name with waiters may appear twice. A lock key that is not a
// string is not listed, because it is not a lock. While a slot of a cluster is migrating, its
// names may be missing.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) (states []driver.State, next string, err error) {
	if err := d.usable(ctx); err != nil {
		return nil, "", err
	}
	at, err := positionOf(after, prefix)
	if err != nil {
		return nil, "", err
	}
	names, err := abandonable(ctx, d.pipelines.life, func(ctx context.Context) ([]string, error) { return d.names(ctx, prefix, &at, limit) })
	if err != nil {
		return nil, "", explain(err)
	}
	states, err = d.states(ctx, names)
	if err != nil && !errors.Is(err, driver.ErrCorrupt) {
		return nil, "", err
	}
	return states, at.String(), err
}

// A position is where a page ends and the next one begins.
type position struct {
	Done   []string `json:"d,omitempty"` // servers whose keys were all scanned
	Server string   `json:"s,omitempty"` // the server that is being scanned; "": the next one
	Queues bool     `json:"q,omitempty"` // the scan is for queues, which follows the scan for locks
	Cursor uint64   `json:"c,omitempty"` // the cursor of its SCAN
	Names  []string `json:"n,omitempty"` // names that were found and exceed the page
	end    bool     // every key was scanned
}

// positionOf is the reverse of position.String. The text may come from someone who must not see
// names without the prefix.
func positionOf(text, prefix string) (at position, err error) {
	if text == "" {
		return at, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(b, &at)
	}
	for _, name := range at.Names {
		if err = cmp.Or(err, driver.CheckName(name)); !strings.HasPrefix(name, prefix) {
			err = errors.New("a name without the prefix")
		}
	}
	if err != nil {
		return at, fmt.Errorf("redislock: no position to go on from: %w", err)
	}
	return at, nil
}

func (p *position) String() string {
	if p.end && len(p.Names) == 0 {
		return ""
	}
	b, _ := json.Marshal(p) // strings and numbers always encode
	return base64.RawURLEncoding.EncodeToString(b)
}

// next moves from the server's locks to its queues, or from its queues to the next server. It
// returns false if none is left.
func (p *position) next(servers map[string]redis.UniversalClient) bool {
	if !p.Queues {
		p.Queues = true
		return true
	}
	p.Done = append(p.Done, p.Server)
	return p.begin(servers)
}

// begin moves to the next server. It returns false if none is left.
func (p *position) begin(servers map[string]redis.UniversalClient) bool {
	p.Server, p.Queues, p.Cursor = "", false, 0
	for _, id := range slices.Sorted(maps.Keys(servers)) {
		if !slices.Contains(p.Done, id) {
			p.Server = id
			return true
		}
	}
	p.end = true
	return false
}

// names returns at most limit names that begin with prefix and have a lock key or a queue. It moves
// at behind them.
func (d *Driver) names(ctx context.Context, prefix string, at *position, limit int) ([]string, error) {
	fit := min(len(at.Names), limit)
	names := at.Names[:fit:fit]
	at.Names = at.Names[fit:]
	var servers map[string]redis.UniversalClient
	count := 0
	for scans := 0; scans < mostScans && len(names) < limit; scans++ {
		room := limit - len(names)
		if count == 0 {
			count = min(max(keysEach*room, leastScanned), mostScanned)
		}
		if servers == nil {
			var err error
			if servers, err = d.servers(ctx); err != nil {
				return nil, err
			}
			if servers[at.Server] == nil && !at.begin(servers) {
				break
			}
		}
		found, cursor, id, err := d.scan(ctx, servers[at.Server], prefix, at, count)
		switch {
		case err != nil:
			return nil, err
		case id != at.Server: // the address now leads to another server, which has hash tables of its own
			servers = nil
			continue
		case tooMany(found, room) && count > 1:
			count = max(count/4, 1) // scan fewer keys
			continue
		}
		if at.Cursor, count = cursor, 0; len(found) == 0 {
			count = mostScanned
		}
		fit = min(len(found), room)
		names, at.Names = append(names, found[:fit]...), append(at.Names, found[fit:]...)
		if cursor == 0 && !at.next(servers) {
			break
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// tooMany reports whether the names that exceed room are too long for a cursor.
func tooMany(names []string, room int) bool {
	left := 0
	for _, name := range names[min(room, len(names)):] {
		left += len(name)
	}
	return left > mostLeft
}

// scan looks at about count keys of a server. It returns the names that begin with prefix, the next
// cursor, and the identity of the server. The cursor and the identity come over one connection,
// because a cursor means nothing to another process of Redis.
func (d *Driver) scan(ctx context.Context, node redis.UniversalClient, prefix string, at *position, count int) (names []string, next uint64, id string, err error) {
	pattern := glob(d.o.Prefix+prefix) + "*"
	if at.Queues {
		pattern = glob(d.o.Prefix+mark+string(kindQueue)) + "*"
	}
	pipe := node.Pipeline()
	info := pipe.Info(ctx, "server")
	scan := pipe.Scan(ctx, at.Cursor, pattern, int64(count))
	_, _ = pipe.Exec(ctx) // each command has its own error
	keys, next, err := scan.Result()
	if err != nil {
		return nil, 0, "", err
	}
	for _, key := range keys {
		if name, ok := d.nameOf(key); ok && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	id, err = identity(node, info)
	return slices.Compact(names), next, id, err
}

// servers returns the servers that have keys, by identity.
func (d *Driver) servers(ctx context.Context) (map[string]redis.UniversalClient, error) {
	type server struct {
		id   string
		node redis.UniversalClient
	}
	found, err := eachPrimary(ctx, d, func(ctx context.Context, node redis.UniversalClient) ([]server, error) {
		id, err := identity(node, node.Info(ctx, "server"))
		return []server{{id, node}}, err
	})
	all := make(map[string]redis.UniversalClient)
	for _, one := range found {
		all[one.id] = one.node
	}
	return all, err
}

// identity returns the run id of a Redis process, or its address if the user may not ask for the
// id.
func identity(node redis.UniversalClient, info *redis.StringCmd) (string, error) {
	text, err := info.Result()
	if err != nil && !isReply(err) {
		return "", err
	}
	return cmp.Or(parseInfo(text)["run_id"], address(node), "server"), nil
}

// states returns the states of those names that are in use, sorted by name.
func (d *Driver) states(ctx context.Context, names []string) (states []driver.State, err error) {
	groups := d.together(names)
	found := make([][]driver.State, len(groups))
	damaged := make([]error, len(groups))
	errs := several.Errors(len(groups), askedAtOnce, func(i int) error {
		values, err := d.show(ctx, groups[i]...)
		if len(groups[i]) > 1 && forItsKeys(err) {
			values, err = d.showEach(ctx, groups[i])
		}
		if err != nil {
			return err
		}
		found[i], damaged[i], err = inUse(groups[i], values)
		return err
	})
	states = slices.Concat(found...)
	slices.SortFunc(states, func(a, b driver.State) int { return cmp.Compare(a.Resource, b.Resource) })
	return states, pages.Damage(append(errs, damaged...))
}

// together groups names so that one script may show each group. On Cluster the names of a group
// share a slot.
func (d *Driver) together(names []string) (groups [][]string) {
	bySlot := map[int][]string{0: names}
	if d.pipelines.cluster != nil {
		clear(bySlot)
		for _, name := range names {
			slot := slot(d.keysOf(name).lock)
			bySlot[slot] = append(bySlot[slot], name)
		}
	}
	for _, some := range bySlot {
		groups = slices.AppendSeq(groups, slices.Chunk(some, shownTogether))
	}
	return groups
}

// showEach runs show for each name alone.
func (d *Driver) showEach(ctx context.Context, names []string) (values []any, err error) {
	for _, name := range names {
		value, err := d.show(ctx, name)
		if err != nil {
			return nil, err
		}
		values = append(values, value...)
	}
	return values, nil
}

// inUse returns the states of the names that are held or waited for. values is what show returned
// for names.
func inUse(names []string, values []any) (states []driver.State, damaged, err error) {
	for i, name := range names {
		st, err := stateOf(name, values[i])
		switch {
		case errors.Is(err, ErrWrongType):
		case errors.Is(err, driver.ErrCorrupt):
			damaged = errors.Join(damaged, err)
		case err != nil:
			return nil, nil, err
		}
		if len(st.Holders)+len(st.Waiters) > 0 {
			states = append(states, st)
		}
	}
	return states, damaged, nil
}

// glob returns a pattern that matches s and nothing else.
func glob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
