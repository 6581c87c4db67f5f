//go:build linux

package main

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// A service shows handles in place of owners. The command recognizes its own owners by them.
func TestOwnersThatAServiceShows(t *testing.T) {
	t.Parallel()
	served, err := serve.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	s := httptest.NewServer(served)
	defer s.Close()
	c := newCLI(t)
	c.store = s.URL
	contains(t, c.wantRun(64, strings.Fields("a -- leasehold run a -- touch ran")...).stderr, "around this one")
	c.missing("ran")
	l := c.acquire("deploy")
	c.want(0, "evict", "deploy", "--owner", l.Owner, "--reason", "it hangs", "--yes")
	if v := c.shown("deploy"); len(v.Holders) > 0 {
		t.Errorf("it holds still: %+v", v.Holders)
	}
}
