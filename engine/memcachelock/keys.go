package memcachelock

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

const (
	// maxKey is memcached's limit. Source: its protocol.txt.
	maxKey = 250
	// maxPrefix leaves room for a hash.
	maxPrefix = 100
)

// escape begins the code of a byte that keys must not have, such as a blank. Neither names nor keys
// have control characters.
const escape = "%"

// hashed precedes the hash of a name that is too long for a key, and marked the hash of a name in
// the key of its mark. No escaped byte reads so.
const hashed, marked = escape + "h", escape + "w"

var escaper = strings.NewReplacer(escape, escape+"25", " ", escape+"20")

// keyOf returns the key of the resource name:
//
//	orders/42        lock:orders/42
//	50 % off         lock:50%20%25%20off
//	(300 bytes)      lock:%h and its SHA-256
func keyOf(prefix, name string) string {
	if key := prefix + escaper.Replace(name); len(key) <= maxKey {
		return key
	}
	return prefix + hashed + hash(name)
}

// markOf returns the key of the mark beside the record.
func markOf(prefix, name string) string { return prefix + marked + hash(name) }

func hash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

func checkPrefix(prefix string) error {
	bad := func(r rune) bool { return r <= ' ' || r == 0x7f }
	switch {
	case strings.ContainsFunc(prefix, bad):
		return fmt.Errorf("memcachelock: blank or control character in the prefix %q", prefix)
	case len(prefix) > maxPrefix:
		return fmt.Errorf("memcachelock: the prefix has %d bytes, at most %d", len(prefix), maxPrefix)
	}
	return nil
}
