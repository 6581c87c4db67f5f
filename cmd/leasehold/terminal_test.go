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

// Who sits at a terminal learns whom the default store excludes.
func TestDefaultStoreIsNamedOnATerminal(t *testing.T) {
	t.Parallel()
	const says = "only your own processes on this machine"
	c := newCLI(t)
	for _, args := range [][]string{{"run", "x", "--", "true"}, {"acquire", "x"}} {
		s := c.screen("sh", append([]string{"-c", `unset LEASEHOLD_STORE XDG_STATE_HOME XDG_CONFIG_HOME; exec leasehold "$@"`, "sh"}, args...)...)
		if code := s.end(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		contains(t, s.shows(), says)
	}
	s := c.screen(binary, "--store", "sqlite:", "run", "y", "--", "true")
	if s.end(); strings.Contains(s.shows(), says) {
		t.Errorf("says so of a store that is named: %s", s.shows())
	}
}
