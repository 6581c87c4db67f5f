package main

import (
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-runewidth"
	"github.com/spf13/pflag"
)

// The help of each command fits one screen, and no narrower terminal has to break its texts.
func TestHelpFitsAScreen(t *testing.T) {
	t.Parallel()
	const screen = 40
	for _, cmd := range documented(newRootCommand(&app{})) {
		if cmd.Parent() != nil && cmd.Parent().Name() == "completion" { // cobra's own texts
			continue
		}
		var b strings.Builder
		writeHelp(&b, cmd, 80, false)
		if lines := strings.Count(b.String(), "\n"); lines > screen {
			t.Errorf("%s: %d lines of help", cmd.CommandPath(), lines)
		}
		for _, width := range []int{60, 80, 120} {
			b.Reset()
			writeHelp(&b, cmd, width, true)
			kept := cmd.Example + cmd.Long
			for line := range strings.Lines(b.String()) {
				line = strings.TrimSuffix(line, "\n")
				n, word := runewidth.StringWidth(line), !strings.Contains(strings.TrimSpace(line), " ")
				if !word && (n > 80 || n > width && !strings.Contains(kept, line)) {
					t.Errorf("%s: %d columns of %d: %s", cmd.CommandPath(), n, width, line)
				}
			}
		}
	}
}

// The full help and the manual page have everything that the short help omits.
func TestFullHelpHasAll(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	brief, full := c.want(0, "help", "run").stdout, c.want(0, "help", "run", "--full").stdout
	contains(t, brief, "leasehold help run --full", "--lost-exit-code")
	if c.want(0, "run", "--help").stdout != brief {
		t.Error("run --help is not help run")
	}
	for _, cmd := range documented(newRootCommand(&app{})) {
		var b strings.Builder
		writeHelp(&b, cmd, 80, true)
		page := manualPage(cmd, time.Unix(0, 0))
		for _, s := range sections(cmd)[1:] {
			contains(t, b.String(), strings.ToUpper(s.title)+"\n")
			contains(t, page, ".SH "+strings.ToUpper(s.title)+"\n")
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && f.Name != "help" {
				contains(t, b.String(), "--"+f.Name)
				contains(t, page, roff("--"+f.Name))
			}
		})
	}
	contains(t, full, "LEASEHOLD_DEADLINE", "lost-exit-code N")
	contains(t, c.want(0, "help", "--full").stdout, "memcached://", "/etc/leasehold/config")
}
