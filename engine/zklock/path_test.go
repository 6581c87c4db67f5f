package zklock

import (
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

func TestEscapedNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"orders": "orders", "a b": "a b", "a/b": "a%2Fb", "%2F": "%252F", ".": "%2E", "..": "%2E%2E", "...": "...",
		"é": "é", "日本": "日本", "😀": "%F0%9F%98%80", "\ue000": "%EE%80%80", "\ufeff": "\ufeff", "\ufffd": "%EF%BF%BD",
		"zookeeper": "zookeeper",
	} {
		if got := escape(name, false); got != want {
			t.Errorf("%q became %q, want %q", name, got, want)
		}
	}
	if got := escape(reserved, true); got == reserved {
		t.Errorf("ZooKeeper's own folder is the node of a name")
	}
}

// Different names are different elements of a path, and only what escape writes is read back.
func FuzzEscape(f *testing.F) {
	for _, name := range []string{"a", "a/b", ".", "..", "%", "%25", "zookeeper", "😀", "é", "a%2fb", "a+b", "\xec", "%EC"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		for _, inRoot := range []bool{false, true} {
			if driver.CheckName(name) == nil {
				element := escape(name, inRoot)
				if back, ok := unescape(element, inRoot); !ok || back != name {
					t.Errorf("%q became %q, which became %q (%v)", name, element, back, ok)
				}
			}
			if back, ok := unescape(name, inRoot); ok && escape(back, inRoot) != name {
				t.Errorf("%q is read as %q, which is written otherwise", name, back)
			}
		}
	})
}

func TestCleanPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{"": "", "/": "", "a": "/a", "/a//b/": "/a/b", "/a%2Fb": "/a%2Fb"} {
		if got, err := cleanPath(path); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", path, got, err, want)
		}
	}
	for _, path := range []string{".", "/a/..", "a/./b", "/a\x00", "/\ue000", "/😀"} {
		if got, err := cleanPath(path); err == nil {
			t.Errorf("%q: %q; want an error", path, got)
		}
	}
}
