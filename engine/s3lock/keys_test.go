package s3lock

import (
	"strings"
	"testing"
)

// Each name has a key of its own, that S3 and file systems take, and that begins as its beginning's.
func FuzzKeys(f *testing.F) {
	for _, name := range []string{"a", "orders/42", "..", "a.json", "~YQ", "=", "日本", strings.Repeat("/", 512), strings.Repeat("a", 512), strings.Repeat("a", 200), strings.Repeat("a", 201)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if back, ok := nameOf(name); ok && keyOf(back) != name {
			t.Errorf("%q is taken for the key of %q", name, back)
		}
		if len(name) > 512 {
			return
		}
		key := keyOf(name)
		if back, ok := nameOf(key); back != name || !ok || len(key)+maxPrefix > 1024 {
			t.Errorf("%q has the key %q, and that is of %q, %v", name, key, back, ok)
		}
		for part := range strings.SplitSeq(key, "/") {
			if part == "" || len(part) > 255 {
				t.Errorf("%q has the key %q", name, key)
			}
		}
		for i := range name {
			if !strings.HasPrefix(key, begin(name[:i])) && !strings.HasPrefix(key, long) {
				t.Fatalf("%q does not begin with %q as %q does", key, begin(name[:i]), name[:i])
			}
		}
	})
}
