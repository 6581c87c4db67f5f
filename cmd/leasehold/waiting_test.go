//go:build linux

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// visible is what is left on a screen of what was written to it, but for lines that scrolled.
func visible(text string) string {
	text = strings.NewReplacer(wrapOff, "", wrapOn, "", "\r\n", "\n").Replace(text)
	text = regexp.MustCompile(`[^\n]*\r\x1b\[K`).ReplaceAllString(text, "") // drawn and erased
	return text
}

// Who waits at a terminal sees for whom, and nothing of it stays.
func TestWaitIsShownOnATerminal(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.hold("x", "--note", "somebody \x1b[31mred")
	s := c.screen("sh", "-c", "export TERM=xterm; stty rows 24 cols 120; leasehold run x -- echo ran; echo code $?")
	for _, says := range []string{"waiting ", "place 1 of 1", "held by somebody [31mred on " + hostname() + " for "} {
		s.waitFor(says)
	}
	s.waitForMatch(`waiting ([3-9]|\d\d+)s for x`) // a busy machine skips seconds
	j.signal(syscall.SIGTERM)
	s.waitFor("code 0")
	s.end()
	if got := visible(s.shows()); got != "ran\ncode 0\n" {
		t.Errorf("it leaves %q of\n%q", got, s.shows())
	}
}

// A line that is drawn is gone when the wait ends in another way.
func TestWaitLeavesTheTerminalClean(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script string
		then   func(c *cli, s *screen)
		leaves string
	}{
		"Ctrl-C":  {"leasehold run x -- true; echo after", func(_ *cli, s *screen) { s.typed(ctrlC) }, ""},
		"busy":    {"leasehold acquire -w 5 x >/dev/null; echo code $?", func(*cli, *screen) {}, "leasehold: acquire: \"x\" is busy"},
		"leading": {"leasehold lead x -- sh -c 'echo ran; exec sleep 60'", func(c *cli, s *screen) { c.evict("x"); s.waitFor("ran"); s.typed(ctrlC) }, "ran\n^C"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			c.hold("x")
			s := c.screen("bash", "-c", "export TERM=xterm; stty rows 24 cols 120; "+tc.script)
			s.waitForMatch(`waiting \d+s for x`)
			tc.then(c, s)
			s.end()
			text := s.shows()
			if got := visible(text); !strings.HasPrefix(got, tc.leaves) || strings.Contains(got, "waiting") || strings.Contains(got, "after") {
				t.Errorf("it leaves %q, want %q; of\n%q", got, tc.leaves, text)
			}
		})
	}
}

func TestWaitIsNotDrawnElsewhere(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"a dumb terminal": "export TERM=dumb; leasehold run -w 6 x -- true",
		"the background":  "set -m; leasehold run -w 6 x -- true & wait $!",
		"a file":          "leasehold run -w 6 x -- true 2>err; cat err",
		"JSON":            "leasehold --json run -w 6 x -- true",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			c.hold("x")
			s := c.screen("sh", "-c", "TERM=xterm; export TERM; "+script)
			s.end()
			if contains(t, s.shows(), "busy"); strings.ContainsAny(s.shows(), "\x1b") || strings.Contains(s.shows(), "waiting") {
				t.Errorf("it draws:\n%q", s.shows())
			}
		})
	}
}

// Neither a terminal that was told to stand still nor a full pipe keeps a command from its lease.
func TestNobodyWaitsForAReader(t *testing.T) {
	t.Parallel()
	t.Run("a terminal", func(t *testing.T) {
		t.Parallel()
		c := newCLI(t)
		j := c.hold("x")
		s := c.screen("sh", "-c", "export TERM=xterm; stty ixon; leasehold run x -- sh -c 'echo > ran'")
		s.waitForMatch(`waiting \d+s for x`)
		s.typed("\x13") // Ctrl-S
		j.signal(syscall.SIGTERM)
		c.read("ran")
		s.typed("\x11")
		s.end()
	})
	t.Run("a pipe", func(t *testing.T) {
		t.Parallel()
		c := newCLI(t)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		fill(t, w)
		cmd := exec.Command(binary, "-v", "run", "--ttl", "9s", "x", "--", "sh", "-c", "sleep 4; echo > ran")
		cmd.Env, cmd.Dir, cmd.Stderr = append(os.Environ(), "LEASEHOLD_STORE="+c.store), c.dir, w
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		c.read("ran")
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// fill leaves no room in a pipe.
func fill(t *testing.T, w *os.File) {
	t.Helper()
	w.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	for b := make([]byte, 4096); ; {
		if _, err := w.Write(b); err != nil {
			break
		}
	}
	w.SetWriteDeadline(time.Time{})
}

// With -v each line has the time, and with --json is one object.
func TestVerboseTellsWhatHappens(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.hold("x", "--note", "somebody")
	const script = `sleep 60 & until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done`
	lines, objects := c.start("-v", "run", "x", "--", "sh", "-c", script), c.start("-v", "--json", "run", "x", "--", "sh", "-c", script)
	for _, k := range []*job{lines, objects} {
		eventually(t, "the wait is told", func() bool { return strings.Contains(k.errors(), "held by somebody") })
	}
	j.signal(syscall.SIGTERM)
	said := []string{"store sqlite:", "waiting for x", "acquired x after", "left running: sleep[", "released x after"}
	if lines.code() != 0 || objects.code() != 0 {
		t.Errorf("%s\n%s", lines.errors(), objects.errors())
	}
	contains(t, lines.errors(), said...)
	for line := range strings.Lines(lines.errors()) {
		when, rest, _ := strings.Cut(line, " ")
		if _, err := time.Parse(time.RFC3339, when); err != nil || !strings.HasPrefix(rest, "leasehold: ") {
			t.Errorf("%q: %v", line, err)
		}
	}
	contains(t, objects.errors(), said...)
	kinds := make(map[string]bool)
	for line := range strings.Lines(objects.errors()) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Text == "" || e.Kind != onStore && e.Name != "x" {
			t.Errorf("%q: %v", line, err)
		}
		if _, err := time.Parse(time.RFC3339, e.Time); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		kinds[e.Kind] = true
	}
	for _, want := range []string{onStore, onWait, onGrant, onEnding, onRelease} {
		if !kinds[want] {
			t.Errorf("no %s in %s", want, objects.errors())
		}
	}
	c.hold("y")
	contains(t, c.call("--json", "-v", "run", "-n", "y", "--", "true").stderr, `"event":"error"`, `"exit_code":1`)
}

// A loss is told when it happens, while the command may still be ending.
func TestLossIsToldAtOnce(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("run", "--ttl", "60s", "--grace", "20s", "x", "--", "sh", "-c", "trap '' TERM; echo > held; until [ -e go ]; do sleep 0.1; done")
	c.read("held")
	c.evict("x")
	eventually(t, "the loss is told", func() bool {
		return strings.Contains(j.errors(), "evicted: test; ending the command within 20s")
	})
	if n := strings.Count(j.errors(), "\n"); n != 1 {
		t.Errorf("more than that: %s", j.errors())
	}
	if err := os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if code := j.code(); code != exitLost {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
}

func TestSlotsThatDifferAreWarnedOf(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.hold("x", "--slots", "3")
	const warning = "a limit of 2 is asked for, but x is held with a limit of 3: the smallest counts"
	for _, args := range [][]string{
		{"run", "--slots", "2", "x", "--", "true"}, {"acquire", "--ttl", "1s", "--slots", "2", "x"}, {"-v", "--json", "run", "--slots", "2", "x", "--", "true"},
	} {
		if o := c.want(0, args...); strings.Count(o.stderr, warning) != 1 {
			t.Errorf("%q warns:\n%s", args, o.stderr)
		}
		eventually(t, "the slots are free again", func() bool {
			var v stateView
			c.want(0, "show", "--json", "x").json(t, &v)
			return len(v.Holders) == 1 && v.Holders[0].Limit == 3
		})
	}
	for _, args := range [][]string{{"run", "--slots", "3", "x", "--", "true"}, {"run", "--shared", "x", "--", "true"}, {"--json", "run", "--slots", "2", "x", "--", "true"}} {
		if o := c.want(0, args...); o.stderr != "" {
			t.Errorf("%q says:\n%s", args, o.stderr)
		}
	}
	contains(t, c.want(0, "show", "x").stdout, "shared/3")
	contains(t, c.want(0, "ls").stdout, "shared/3")
	// One who has to wait is warned once, however long that takes.
	if o := c.want(1, "run", "-w", "3", "--slots", "1", "x", "--", "true"); strings.Count(o.stderr, "warning") != 1 {
		t.Errorf("it warns:\n%s", o.stderr)
	}
}

func TestHelpOfWhatThereIsNot(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	contains(t, c.want(64, "help", "acquier").stderr, `unknown command "acquier"`, "acquire")
	contains(t, c.want(64, "help", "demo", "nosuch").stderr, `unknown command "nosuch"`)
	contains(t, c.want(0, "help", "demo", "seckill").stdout, "seckill")
	contains(t, c.want(0, "help").stdout, "Hold a lock")
}

// The line of a waiter names those who hold the lock, not those whose share is only kept.
func TestWaitIsForAHolder(t *testing.T) {
	t.Parallel()
	state := leasehold.State{Resource: "gpu", Holders: []leasehold.Holder{{Mode: driver.Shared}, {Mode: driver.Shared, Owner: driver.OwnerOf("BBBBBBBB22222222")}}}
	if why := reason(state, nil, false); why != "; held by BBBBBBBB" {
		t.Errorf("it reads %q", why)
	}
}
