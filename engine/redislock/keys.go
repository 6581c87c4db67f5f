package redislock

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/leasehold-go/leasehold/driver"
)

// Kinds of a resource's companion keys. The letter is part of a companion's name. Companions
// expire: those of waiters after seconds, those of sharers with the longest lease.
const (
	kindHistory = 'f' // string: the last fence and the last exclusive grant; lasts for historyTTL, longer if the fence is ahead of the clock, for ever with RequireFenceHistory
	kindQueue   = 'q' // sorted set: waiters in the order of their first Try
	kindDetails = 'd' // hash: about each waiter and each sharer, and a mark if a sharer may want to know who waits
	kindShares  = 's' // sorted set: sharers by the end of their leases
	kindLimits  = 'l' // sorted set: sharers by the limits they asked for
	kindWeights = 'w' // sorted set: sharers with a weight above 1, and the sum of what exceeds 1, see prelude.lua
	kindMost    = 'o' // string: the limit that an operator has set; never expires
	kindRest    = 'r' // string: when the lock's rest ends
	kindBeats   = 'b' // sorted set: drivers by when they last kept the places of their waiters, and since when, see history.lua

	// Kinds of which each owner has a key of its own. They expire after 30 s, a reason not before
	// the lease would have ended, and an owner's bar not before driver.End.Bar.
	kindGone  = 'g' // string: refuses attempts of the owner up to that number, because its claim was given up or another ended its lease
	kindWhy   = 'e' // string: why a lease of that owner was ended by force
	kindNoted = 'n' // string: the last note of that owner, while earlier ones may still arrive

	// The kind of one key for all resources together. The letter ends its name.
	kindMemory = 'm' // string: see seen
)

// mark begins the part of a companion's name that no lock key has: neither names nor
// prefixes have control characters.
const mark = "\x1f"

// keys are the keys of one resource.
type keys struct {
	lock   string
	prefix string
	tag    string // the hash tag that puts companions into the slot of lock
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
	lock := d.o.Prefix + name
	return keys{lock: lock, prefix: d.o.Prefix, tag: tagFor(lock)}
}

func (k keys) companion(kind byte) string { return string(k.appendKey(nil, kind, "")) }

// appendKey appends the name of a companion. owner counts only for kinds of which each owner has
// one.
func (k keys) appendKey(b []byte, kind byte, owner string) []byte {
	b = append(append(b, k.prefix...), mark...)
	b = append(b, kind)
	if kind == kindMemory {
		return b
	}
	b = append(append(append(b, '{'), k.tag...), '}')
	if k.tag != k.lock {
		b = append(b, k.lock...)
	}
	switch kind {
	case kindGone, kindWhy, kindNoted:
		b = append(append(b, mark...), owner...)
	}
	return b
}

// nameOf is the reverse of keysOf for a lock key or a queue; ok is false for other keys.
func (d *Driver) nameOf(key string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(key, d.o.Prefix)
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
		if rest, ok = strings.CutPrefix(lock, d.o.Prefix); !ok {
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
