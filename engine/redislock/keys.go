package redislock

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/leasehold-go/leasehold/driver"
)

// What a resource has beside its lock key. The letter is part of the companion's name.
const (
	kindHistory = 'f' // string: last fence given, and about the last exclusive grant
	kindGone    = 'g' // string: the claim of that owner was given up
	kindWhy     = 'e' // string: why a lease of that owner was ended by force
	kindNoted   = 'n' // string: the last note of that owner's, while earlier ones may still come
	kindQueue   = 'q' // sorted set: waiters in the order of their first Try
	kindDetails = 'd' // hash: about each waiter and each sharer
	kindShares  = 's' // sorted set: sharers by the end of their leases
	kindLimits  = 'l' // sorted set: sharers by the limits they asked for
	kindRest    = 'r' // string: when the lock's rest ends
)

// mark begins the part of a companion's name that no lock key has: neither names nor
// prefixes have control characters.
const mark = "\x1f"

// keys are the keys of one resource.
type keys struct {
	lock   string
	prefix string
	tag    string // that puts companions into the slot of lock
}

// kindMemory is of all resources together, with nothing behind it: see seen.
const kindMemory = 'm'

// memoryKeys is how many keys the mark of memory.lua has: one, where there is a mark.
func (d *Driver) memoryKeys() int { return min(int(d.memory), 1) }

// markOfMemory is that key.
func (d *Driver) markOfMemory() string { return d.prefix + mark + string(kindMemory) }

func (c *call) markOfMemory(d *Driver) {
	if d.memory > 0 {
		c.text(d.markOfMemory())
	}
}

// keysOf returns the keys of the resource name. They all share the slot of the lock key:
//
//	lock:orders/42           lock:␟q{lock:orders/42}
//	lock:{shop}/42           lock:␟q{shop}lock:{shop}/42
//	lock:a}b                 lock:␟q{4f}lock:a}b
//
// The third is a tag found by search. A prefix with a tag of its own decides the slot of
// all, and the companion's braces have no meaning.
func (d *Driver) keysOf(name string) keys {
	lock := d.prefix + name
	return keys{lock: lock, prefix: d.prefix, tag: tagFor(lock)}
}

func (k keys) companion(kind byte) string { return string(k.appendCompanion(nil, kind)) }

func (k keys) appendCompanion(b []byte, kind byte) []byte {
	b = append(append(b, k.prefix...), mark...)
	b = append(append(b, kind, '{'), k.tag...)
	b = append(b, '}')
	if k.tag != k.lock {
		b = append(b, k.lock...)
	}
	return b
}

// companions are keys of a call.
func (c *call) companions(k keys, kinds ...byte) {
	var room [128]byte
	for _, kind := range kinds {
		c.body = appendText(c.body, k.appendCompanion(room[:0], kind))
	}
	c.count += len(kinds)
}

// appendOf appends the companion of one owner.
func (k keys) appendOf(b []byte, kind byte, owner string) []byte {
	return append(append(k.appendCompanion(b, kind), mark...), owner...)
}

// companionOf is a key of a call.
func (c *call) companionOf(k keys, kind byte, owner string) {
	var room [192]byte
	c.body = appendText(c.body, k.appendOf(room[:0], kind, owner))
	c.count++
}

// nameOf is the reverse of keysOf for a lock key or a queue; ok is false for other keys.
func (d *Driver) nameOf(key string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(key, d.prefix)
	if !ok {
		return "", false
	}
	if about, isCompanion := strings.CutPrefix(rest, mark); isCompanion {
		about, isQueue := strings.CutPrefix(about, string(kindQueue)+"{")
		tag, lock, closed := strings.Cut(about, "}")
		if !isQueue || !closed {
			return "", false
		}
		if lock == "" {
			lock = tag
		}
		if rest, ok = strings.CutPrefix(lock, d.prefix); !ok {
			return "", false
		}
	}
	return rest, driver.CheckName(rest) == nil
}

// checkPrefix returns an error for a prefix that would keep companions out of the slot
// of their lock or let them collide with locks.
func checkPrefix(prefix string) error {
	switch {
	case strings.ContainsFunc(prefix, unicode.IsControl):
		return fmt.Errorf("redislock: control character in the prefix %q", prefix)
	case strings.Contains(prefix, "{") && hashTag(prefix) == "":
		return fmt.Errorf("redislock: the prefix %q has a brace but no complete hash tag such as {shop}", prefix)
	}
	return nil
}
