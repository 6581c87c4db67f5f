package redislock

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The checksum of the cluster specification, its slots, and its rules for hash tags.
func TestSlot(t *testing.T) {
	t.Parallel()
	if got := crc16("123456789"); got != 0x31C3 {
		t.Errorf("crc16 = %#x, the specification says 0x31c3", got)
	}
	same := [][2]string{
		{"{user1000}.following", "user1000"}, {"foo{{bar}}zap", "{bar"}, {"foo{bar}{zap}", "bar"},
		{"lock:{a}b", "a"}, {"{a", "{a"}, {"a}{b}", "b"},
	}
	for _, pair := range same {
		if want := int(crc16(pair[1]) % slots); slot(pair[0]) != want {
			t.Errorf("slot(%q) = %d, want that of %q, %d", pair[0], slot(pair[0]), pair[1], want)
		}
	}
	// An empty tag is none: the whole key counts.
	if got, want := slot("foo{}{bar}"), int(crc16("foo{}{bar}")%slots); got != want {
		t.Errorf("slot of a key with an empty tag = %d, want %d", got, want)
	}
	if got := slot("foo"); got != 12182 { // CLUSTER KEYSLOT foo
		t.Errorf("slot(foo) = %d, Redis says 12182", got)
	}
}

func TestEachSlotHasATag(t *testing.T) {
	t.Parallel()
	for i := range slots {
		if tag := slotTag(i); slot("x{"+tag+"}y") != i || len(tag) > 4 {
			t.Errorf("slotTag(%d) = %q of slot %d", i, tag, slot("x{"+tag+"}y"))
		}
	}
}

func trickyNames() []string {
	names := []string{
		"a", "A", "a/b", "{", "}", "{}", "}{", "{}{}", "{}{a}", "{{}}", "a{}b", "a}b", "a}b{c", "a}b{c}", "{a}", "{a}b", "b{a}",
		"{a", "a}", "a{b", "{{a}", "{a}}", "{a}{b}", "q{a}", "f{a}b", "lock:a", "lock:", "é", "日本", "x{}y{z}", " ", "*", "[a]",
		strings.Repeat("}", 512), strings.Repeat("{", 512), strings.Repeat("{}", 256), strings.Repeat("x", 512),
	}
	for _, kind := range []byte{kindHistory, kindGone, kindWhy, kindNoted, kindQueue, kindDetails, kindShares, kindLimits} {
		names = append(names, string(kind), string(kind)+"{b}", string(kind)+"{a}lock:a", "{"+string(kind)+"}")
	}
	return names
}

func driverWith(t testing.TB, o Options) *Driver {
	t.Helper()
	d, err := New(noServer(), &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func allKeys(k keys) map[string]string {
	return map[string]string{
		"lock": k.lock, "history": k.companion(kindHistory), "queue": k.companion(kindQueue), "details": k.companion(kindDetails),
		"shares": k.companion(kindShares), "limits": k.companion(kindLimits), "gone": string(k.appendKey(nil, kindGone, "owner}{")),
	}
}

// Whatever the name: companions share the slot of the lock key, and no key of one
// resource is any key of another.
func TestCompanionsShareTheSlotAndCollideWithNothing(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{}, {NoPrefix: true}, {Prefix: "{app}:"}, {Prefix: "a}b:"}, {Prefix: "x{y}}"}} {
		o.MinUptime = time.Minute
		d := driverWith(t, o)
		memory := d.keysOf("any").companion(kindMemory)
		seen := map[string]string{memory: "the mark of the memory"}
		if got, ok := d.nameOf(memory); ok || !strings.HasPrefix(memory, d.o.Prefix) {
			t.Errorf("prefix %q: the mark of the memory, %q, is taken for the resource %q, or outside", d.o.Prefix, memory, got)
		}
		for _, name := range trickyNames() {
			k := d.keysOf(name)
			for what, key := range allKeys(k) {
				if got, want := slot(key), slot(k.lock); got != want {
					t.Errorf("prefix %q: %s of %q, %q, is in slot %d, the lock in %d", d.o.Prefix, what, name, key, got, want)
				}
				me := fmt.Sprintf("%s of %q", what, name)
				if other, ok := seen[key]; ok {
					t.Errorf("prefix %q: %q is %s and %s", d.o.Prefix, key, me, other)
				}
				seen[key] = me
			}
			for _, key := range []string{k.lock, k.companion(kindQueue)} {
				if got, ok := d.nameOf(key); !ok || got != name {
					t.Errorf("prefix %q: nameOf(%q) = %q, %v, want %q", d.o.Prefix, key, got, ok, name)
				}
			}
			if got, ok := d.nameOf(k.companion(kindHistory)); ok {
				t.Errorf("prefix %q: the history of %q is taken for the resource %q", d.o.Prefix, name, got)
			}
		}
	}
}

func FuzzCompanionsShareTheSlot(f *testing.F) {
	for _, name := range trickyNames() {
		f.Add("lock:", name)
	}
	f.Fuzz(func(t *testing.T, prefix, name string) {
		if checkPrefix(prefix) != nil || strings.Contains(name, mark) || name == "" {
			return
		}
		d := &Driver{o: Options{Prefix: prefix}}
		k := d.keysOf(name)
		for what, key := range allKeys(k) {
			if slot(key) != slot(k.lock) {
				t.Errorf("%s %q is in another slot than %q", what, key, k.lock)
			}
		}
		if got, ok := d.nameOf(k.companion(kindQueue)); ok && got != name {
			t.Errorf("nameOf the queue of %q is %q", name, got)
		}
	})
}
