package redislock

import (
	"fmt"
	"testing"
)

// Where a cluster's node says that another serves a key, it says so in the forms of its own.
func TestAddressesOfNodes(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		"127.0.0.1:6379": "127.0.0.1:6379", "::1:6379": "[::1]:6379", "[::1]:6379": "[::1]:6379", "redis.example:6379": "redis.example:6379",
		":6380": "10.0.0.1:6380", "": "", "nonsense": "",
	} {
		if got := nodeAddress(said, "10.0.0.1:6379"); got != want {
			t.Errorf("%q is %q; want %q", said, got, want)
		}
	}
}

// A connection whose server is no primary any more, or knows its user no more, is left: the next call
// connects anew.
func TestRefusedConnectionIsLeft(t *testing.T) {
	t.Parallel()
	for _, says := range []string{"READONLY You can't write", "MASTERDOWN Link with MASTER is down", "NOAUTH Authentication required."} {
		first := true
		d := driverOn(t, speaking(t, func(words []string) any {
			if first {
				first = false
				return refusal(says)
			}
			return grantPlain(words)
		}), nil)
		p, err := d.pipelines.of(t.Context(), "", false)
		if err != nil {
			t.Fatal(err)
		}
		n, err := p.connection(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := claimOn(t, d, "a").Try(t.Context()); err == nil {
			t.Errorf("%s: granted", says)
		}
		if n.live() {
			t.Errorf("%s: the connection is kept", says)
		}
		for i := range 3 {
			if _, err := claimOn(t, d, fmt.Sprint(i)).Try(t.Context()); err != nil {
				t.Errorf("after %s: %v", says, err)
			}
		}
	}
}
