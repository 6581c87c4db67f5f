package natslock

import (
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/engine/caslock"
)

// Each name has a key of its own, also one of two parts, of which a former version takes none for a name.
func TestKeysOfNames(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for _, name := range []string{
		"a", "a.b", "a\x00b", "a.b\x00c", "a\x00b.c", "\x00a", "=\x00a", "=", "=00", "a=00b", ".a", "a.", "ä\x00\"", ">", "*", "a\x00*", "a b\x00c",
	} {
		key := keyOf(name)
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q have the key %q", name, other, key)
		}
		seen[key] = name
		if back, ok := nameOf(key); !ok || back != name {
			t.Errorf("%q has the key %q, which is that of %q, %v", name, key, back, ok)
		}
		_, former := caslock.Unescape(key, plain)
		if two := strings.Contains(name, parted); former == two {
			t.Errorf("%q: a former version takes the key %q: %v", name, key, former)
		}
	}
	for _, key := range []string{"a..b", "a.b.c", ".a", "=.=2E.b", "==.a"} {
		if name, ok := nameOf(key); ok {
			t.Errorf("%q is the key of %q", key, name)
		}
	}
}
