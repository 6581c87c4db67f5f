package caslock_test

import (
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/engine/caslock"
)

// No two names have one key, and what is no key is no name.
func FuzzEscape(f *testing.F) {
	for _, name := range []string{"", "orders/42", "a=2Fb", "=", "=2", "=2f", "..", "a b\x00", "日本", "\xff", "=FG", strings.Repeat("/", 512)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		for _, plain := range []string{"", "-_", "-_/"} {
			key := caslock.Escape(name, plain)
			if back, ok := caslock.Unescape(key, plain); back != name || !ok || strings.ContainsAny(key, " .\x00%*>") {
				t.Errorf("%q is %q, and that %q, %v", name, key, back, ok)
			}
			if back, ok := caslock.Unescape(name, plain); ok && caslock.Escape(back, plain) != name {
				t.Errorf("%q is taken for the key of %q", name, back)
			}
		}
	})
}
