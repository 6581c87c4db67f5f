package memcachelock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func serversAt(t *testing.T, addresses ...string) []*server {
	t.Helper()
	d, err := New(addresses, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d.servers
}

// Processes of different releases must agree: these never change.
func TestPickIsStable(t *testing.T) {
	all := serversAt(t, "a", "b:11212", "C")
	for name, want := range map[string]string{
		"orders/42": "b:11212", "orders/43": "b:11212", "backup": "c:11211", "é": "c:11211", "f": "a:11211",
	} {
		if got := pick(all, keyOf(DefaultPrefix, name)).address; got != want {
			t.Errorf("%q belongs to %s, want %s", name, got, want)
		}
	}
}

func TestPickIgnoresTheOrder(t *testing.T) {
	addresses := []string{"a", "b", "c", "d", "e"}
	all := serversAt(t, addresses...)
	share := make(map[string]int)
	const names = 5000
	for i := range names {
		key := fmt.Sprint("lock:", i)
		want := pick(all, key).address
		share[want]++
		mixed := slices.Clone(all)
		rand.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		if got := pick(mixed, key).address; got != want {
			t.Fatalf("%s belongs to %s or %s", key, want, got)
		}
		// A server that leaves takes its own names along and moves no others.
		without := slices.DeleteFunc(mixed, func(s *server) bool { return s.address == "c:11211" })
		if got := pick(without, key).address; got != want && want != "c:11211" {
			t.Fatalf("%s moved from %s to %s when another left", key, want, got)
		}
	}
	for address, n := range share {
		if n < names/len(addresses)*8/10 || n > names/len(addresses)*12/10 {
			t.Errorf("%s has %d of %d names", address, n, names)
		}
	}
}
