//go:build linux

package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
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

// One leaves top as one leaves other programs of its kind, and finds the terminal as it was.
func TestTopLeavesAtAKey(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"q": "q", "Ctrl-C": ctrlC} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			c.acquire("job")
			s := c.screen("sh", "-c", "stty rows 24 cols 120; stty -a > before; leasehold top; echo code $?; stty -a > after")
			s.waitFor("q ends")
			s.typed(key)
			s.waitFor("code 0")
			if s.end() != 0 || !strings.HasSuffix(strings.Split(s.shows(), "code 0")[0], screenLeave) {
				t.Errorf("it leaves the screen as %q", s.shows())
			}
			if before, after := c.read("before"), c.read("after"); before != after {
				t.Errorf("it leaves the terminal as\n%s\nit was\n%s", after, before)
			}
		})
	}
}

// What doctor finds fits the terminal: words are not cut, and the columns stay columns.
func TestDoctorFitsTheTerminal(t *testing.T) {
	t.Parallel()
	for _, width := range []int{80, 120} {
		t.Run(strconv.Itoa(width), func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			c.acquire("job")
			whole := strings.Fields(c.call("doctor").stdout)
			s := c.screen("sh", "-c", fmt.Sprintf("stty cols %d; leasehold doctor; leasehold --store sqlite:no/such/folder/%s.db doctor", width, strings.Repeat("long", 10)))
			s.end()
			shows := strings.ReplaceAll(s.shows(), "\r\n", "\n")
			for line := range strings.Lines(shows) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width && !strings.Contains(line, "longlong") {
					t.Errorf("%d characters: %q", n, line)
				}
			}
			for _, word := range whole {
				if !strings.Contains(shows, word) && !strings.ContainsAny(word, "0123456789") { // of times
					t.Errorf("no %q in:\n%s", word, shows)
				}
			}
			t.Log("\n" + shows)
		})
	}
}
