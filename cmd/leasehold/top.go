package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// topEvery is how often top looks; its one question to the store is cheap.
const topEvery = time.Second

// Sequences that every terminal of the last decades knows.
const (
	screenEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l" // the alternate screen, no cursor, no wrapping
	screenLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	screenHome  = "\x1b[H"
	lineEnd     = "\r\n"
	screenRest  = "\x1b[J" // clear what is below
)

func newTopCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "top [flags] [PREFIX]",
		Short: "Watch the locks live",
		Long: `Show what "leasehold ls" lists, at most 500 names, refreshed every second until q or
Ctrl-C. If the output is not a terminal, or with --json, print one snapshot of all.`,
		Example:           "  leasehold top\n  leasehold top orders/",
		Args:              argNames("[PREFIX]"),
		ValidArgsFunction: completeName(a, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			screen, ok := terminal(a.stdout)
			if !ok || a.json {
				return (&lister{prefix: prefix}).list(cmd.Context(), a)
			}
			return a.with(cmd.Context(), stores.OpenExisting, nil, func(ctx context.Context, locks *leasehold.Locker) error {
				return top(ctx, a, locks, screen, prefix)
			})
		},
	}
}

// top shows frames until a key or a signal ends it.
func top(ctx context.Context, a *app, locks *leasehold.Locker, screen *os.File, prefix string) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	if keys, ok := terminal(a.stdin); ok {
		before, err := term.MakeRaw(int(keys.Fd()))
		if err != nil {
			return internalErrorf("read single keys: %w", err)
		}
		defer term.Restore(int(keys.Fd()), before)
		go leaveAtKey(keys, leave)
	}
	fmt.Fprint(screen, screenEnter)
	defer fmt.Fprint(screen, screenLeave)
	tick := time.NewTicker(topEvery)
	defer tick.Stop()
	for {
		page, failed := look(ctx, locks, prefix)
		if ctx.Err() != nil {
			return nil
		}
		width, height, err := term.GetSize(int(screen.Fd()))
		if err != nil {
			return internalErrorf("ask the terminal for its size: %w", err)
		}
		frame := topFrame(a.storeURL, page, failed, width)
		if _, err := screen.Write(fit(frame, width, height)); err != nil {
			return internalErrorf("write to the terminal: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// leaveAtKey calls leave at q, and at Ctrl-C and Ctrl-\, which are no signals from a raw terminal.
func leaveAtKey(keys io.Reader, leave func()) {
	for b := make([]byte, 16); ; {
		n, err := keys.Read(b)
		if err != nil {
			return
		}
		if bytes.ContainsAny(b[:n], "qQ\x03\x1c") {
			leave()
		}
	}
}

// topMost is how many locks top asks for, which is more than a screen has lines.
const topMost = 500

// look asks the store once.
func look(ctx context.Context, locks *leasehold.Locker, prefix string) (leasehold.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	return locks.Page(ctx, leasehold.PageOptions{Prefix: prefix, Limit: topMost})
}

// topFrame is the text of one look. A store that cannot be reached is shown as such:
// whoever watches wants to see when it is back.
func topFrame(store string, page leasehold.Page, err error, width int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "leasehold %s  %s", stores.Redact(store), time.Now().Format(time.TimeOnly))
	if err != nil {
		fmt.Fprintf(&b, "\n\n%s\n", plain(err.Error()))
	}
	if err != nil && len(page.States) == 0 {
		return b.String()
	}
	holders, waiters := 0, 0
	for _, s := range page.States {
		holders += len(s.Holders)
		waiters += len(s.Waiters)
	}
	of := ""
	if page.Next != "" {
		of = fmt.Sprintf(" of the first %d names", len(page.States))
	}
	fmt.Fprintf(&b, "  %d held, %d waiting%s  q ends\n\n", holders, waiters, of)
	writeTable(&b, viewsOf(page.States), width)
	return b.String()
}

// fit returns frame as one write that replaces a screen of width and height.
func fit(frame string, width, height int) []byte {
	lines := strings.Split(strings.TrimRight(frame, "\n"), "\n")
	if more := len(lines) - height + 1; more > 0 && height > 1 {
		lines = append(lines[:height-2], fmt.Sprintf("… %d more", more+1))
	}
	var b bytes.Buffer
	b.WriteString(screenHome)
	for _, line := range lines {
		// Behind a line that ends in the last cell, lineRest would clear that cell.
		b.WriteString(lineRest + cut(line, width, "") + lineEnd)
	}
	b.WriteString(screenRest)
	return b.Bytes()
}
