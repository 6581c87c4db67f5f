//go:build linux

package main

import (
	"strings"
	"testing"
)

// On a terminal nobody evaluates: there acquire speaks to a person.
func TestAcquireOnATerminal(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	s := c.screen(binary, "acquire", "--ttl", "1h", "deploy")
	if code := s.end(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	contains(t, s.shows(), "export LEASEHOLD_OWNER='", "deploy is held for", "leasehold help acquire")
	s = c.screen(binary, "acquire", "-n", "deploy")
	if code := s.end(); code != 1 || strings.Contains(s.shows(), "(exit") {
		t.Errorf("exit code %d:\n%s", code, s.shows())
	}
}
