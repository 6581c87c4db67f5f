package locktest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

var nameCases = []Case{
	{Name: "RefusesInvalidNames", Run: refusesInvalidNames},
	{Name: "NamesAreDistinct", Alone: true, Run: namesAreDistinct},
}

// invalidNames must be refused by every engine.
var invalidNames = map[string]string{
	"empty":           "",
	"NUL":             "a\x00b",
	"CR LF":           "a\r\nDEL b",
	"tab":             "a\tb",
	"delete":          "a\x7f",
	"next line":       "a\u0085b",
	"not UTF-8":       "a\xff",
	"lone surrogate":  "a\xed\xa0\x80",
	"513 bytes":       strings.Repeat("x", 513),
	"513 in 2s and 1": strings.Repeat("é", 256) + "x",
}

func refusesInvalidNames(t testing.TB, h Harness) {
	l := locker(t, open(t, h), leasehold.Options{})
	for what, name := range invalidNames {
		lease, err := l.TryAcquire(bounded(t), name)
		if lease != nil || !errors.Is(err, leasehold.ErrInvalidName) {
			t.Errorf("TryAcquire of a name that is invalid (%s): %s, %v; want ErrInvalidName", what, describe(lease), err)
		}
		lease, err = l.Acquire(bounded(t), name, leasehold.Wait(time.Millisecond))
		if lease != nil || !errors.Is(err, leasehold.ErrInvalidName) {
			t.Errorf("Acquire of a name that is invalid (%s): %s, %v; want ErrInvalidName", what, describe(lease), err)
		}
		if _, err := l.Inspect(bounded(t), name); !errors.Is(err, leasehold.ErrInvalidName) {
			t.Errorf("Inspect of a name that is invalid (%s): %v; want ErrInvalidName", what, err)
		}
		if err := l.Evict(bounded(t), name, newOwner(), ""); !errors.Is(err, leasehold.ErrInvalidName) {
			t.Errorf("Evict of a name that is invalid (%s): %v; want ErrInvalidName", what, err)
		}
	}
}

// trickyNames returns names that a careless engine may confuse: with each other, with its own keys,
// or with places outside of its prefix.
func trickyNames(base string) []string {
	const limit = 512
	long := func(end string) string { return base + strings.Repeat("x", limit-len(base)-len(end)) + end }
	names := []string{
		// Engines must take these literally. An engine that keeps names in a tree could escape from
		// its folder.
		".", "..", "/", "//", " ", "  ", "*", "%", "_", "{}", "{", "}", "../zookeeper", "/zookeeper", "\\", "'", `"`, "$", "é", "e\u0301",
		"Ω", "\u2126", "\ufeff", "\u200b", "null", "true", "0", "00", "-1",
		long("a"), long("b"), long("é"), strings.Repeat("é", limit/2), strings.Repeat("😀", limit/4),
	}
	for _, tail := range []string{
		"", "a", "A", "a/b", "a//b", "a/b/", "/a/b", "a/./b", "a/../b", "./a", "../a", "a.b", "a:b", "a-b", "a_b", "a%b", "a*b", "a?b", "a[b]", "a\\b",
		"{a}b", "{b}a", "{}a", "a{b}", "a b", "a  b", "a ", " a", "a+b", "a&b=c", "a#b", "a;b", "a,b", "a|b", "a~", "a\u00a0",
		"a'b", `a"b`, "a''b", "a'; DROP TABLE x; --", "a$1", "a%2Fb", "a%2fb", "a%252Fb", "a%00b", "a\\x00b", "a\\u0000b",
		"é", "e\u0301", "É", "E\u0301", "ß", "ss", "SS", "ſs", "ı", "i", "I", "İ", "ﬁ", "fi", "日本", "\U0001F600",
		// Engines may use such names for data beside a resource.
		":fence", ":queue", ":wake", ":shared", ":token", ".fence", "/fence", "/queue", "/holders", "/waiters", "/lock", "/_c_", "-lock-", "__lock__",
		"/lock-0000000000", "-fence", "_fence", "_queue", "a:", "a:fence", "{a}:fence", "{a}", "path", "path/x", "path/x/y",
	} {
		names = append(names, base+tail)
	}
	return names
}

// namesAreDistinct: different owners hold all tricky names at once. A second owner of each is
// refused, and releasing one frees no other.
func namesAreDistinct(t testing.TB, h Harness) {
	d1, d2 := open(t, h), open(t, h)
	names := trickyNames(newName(t) + "/")
	holders := make([]*contender, len(names))
	for i, name := range names {
		holders[i] = contend(t, d1, request(name))
		if _, err := holders[i].try(); err != nil {
			t.Fatalf("%q: %v; it is free: only other names are held", name, err)
		}
	}
	for i, name := range names {
		if err := contend(t, d2, request(name)).tryOnce(bounded(t)); !errors.Is(err, leasehold.ErrBusy) {
			t.Errorf("%q: %v; want busy: it is held", name, err)
		}
		if i%2 == 0 {
			holders[i].released()
		}
	}
	for i, name := range names {
		if i%2 == 0 {
			if err := contend(t, d2, request(name)).tryOnce(bounded(t)); err != nil {
				t.Errorf("%q: %v; it was released", name, err)
			}
			continue
		}
		if _, err := holders[i].renew(longTTL); err != nil {
			t.Errorf("%q: Renew: %v; want it held: only other names were released", name, err)
		}
	}
}
