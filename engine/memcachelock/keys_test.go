package memcachelock

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/driver"
)

func TestKeysAreAsDocumented(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, want := range map[string]string{
		"orders/42": "lock:orders/42",
		"50 % off":  "lock:50%20%25%20off",
		"%20":       "lock:%2520",
		"é":         "lock:é",
		long:        "lock:%h0d4e2ca9e9cbced7a7a5380eb29e1a3783b9b6d0db72de36a1051038e1c1fbc7",

		// The longest that stands for itself, and one more.
		long[:245]: "lock:" + long[:245],
		long[:246]: "lock:%h",
	} {
		got := keyOf(DefaultPrefix, name)
		if strings.HasSuffix(want, hashed) {
			got = got[:len(want)]
		}
		if got != want {
			t.Errorf("key of %.20q is %q, want %q", name, got, want)
		}
	}
}

// Whatever two names are, their keys are legal, below the prefix, and differ.
func FuzzKeysAreDistinct(f *testing.F) {
	f.Add("a b", "a%20b")
	f.Add("%h", "h")
	f.Add(strings.Repeat(" ", 82), strings.Repeat("%20", 82))
	f.Fuzz(func(t *testing.T, a, b string) {
		if driver.CheckName(a) != nil || driver.CheckName(b) != nil {
			t.Skip()
		}
		for _, prefix := range []string{"", DefaultPrefix, strings.Repeat("p", maxPrefix)} {
			ka, kb := keyOf(prefix, a), keyOf(prefix, b)
			if (ka == kb) != (a == b) {
				t.Errorf("keys of %q and %q are %q and %q", a, b, ka, kb)
			}
			if !strings.HasPrefix(ka, prefix) || len(ka) > maxKey || !utf8.ValidString(ka) {
				t.Errorf("key of %q is %q", a, ka)
			}
			if m := markOf(prefix, a); m == ka || m == kb || len(m) > maxKey {
				t.Errorf("the mark of %q is %q", a, m)
			}
			if strings.ContainsFunc(ka, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
				t.Errorf("key of %q has a blank or control character: %q", a, ka)
			}
		}
	})
}
