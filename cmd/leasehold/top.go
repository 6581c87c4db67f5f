package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// topEvery is the interval of top's calls to the store.
const topEvery = time.Second

const (
	screenEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l" // the alternate screen, no cursor, no wrapping
	screenLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	screenHome  = "\x1b[H"
	lineRest    = "\x1b[K" // clears from the cursor on
	lineEnd     = "\r\n"
	cursorOff   = "\x1b[?25l"
	cursorOn    = "\x1b[?25h"
	boldText    = "\x1b[1m"
	reverseText = "\x1b[7m"
	plainText   = "\x1b[m"
)

func newTopCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "top [flags] [PREFIX]",
		Short: "Watch the locks live",
		Long: `Show what "leasehold ls" lists, at most 500 names, refreshed every second until q or
Ctrl-C. Keys sort, filter, show a lock and evict its holder; press ? to see them. If the
output is not a terminal, or with --json, print one snapshot of all.

# Keys
` + topKeys + `
To evict, you give a reason and type the name of the lock. The holder that was selected
when you pressed e is evicted, and nobody else. A process passes a lease on among its own
tasks: then the task that has it by now is hit.

When the store does not answer, the list stays as it was, and the second line says how
old it is.`,
		Example: "  leasehold top\n  leasehold top orders/",
		Args:    argNames("[PREFIX]"),
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

// top shows frames until a key or a signal ends it. Keys work even while the store or an eviction
// takes long.
func top(ctx context.Context, a *app, locks *leasehold.Locker, screen *os.File, prefix string) error {
	v := &topView{app: a, store: stores.Redact(a.storeURL), prefix: prefix, since: time.Now()}
	evictions := make(chan string)
	pending, err := v.browse(ctx, locks, screen, evictions)
	for range pending { // evictions that the user has confirmed, and whose outcome the screen cannot show any more
		a.write(<-evictions)
	}
	return err
}

// browse is top until it leaves the screen. It returns how many outcomes evictions has yet to
// receive.
func (v *topView) browse(ctx context.Context, locks *leasehold.Locker, screen *os.File, evictions chan string) (pending int, err error) {
	evicting := ctx
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	a, prefix := v.app, v.prefix
	var typed chan []byte
	if keys, ok := terminal(a.stdin); ok {
		before, err := term.MakeRaw(int(keys.Fd()))
		if err != nil {
			return pending, internalErrorf("read single keys: %w", err)
		}
		defer term.Restore(int(keys.Fd()), before)
		typed, v.keys = make(chan []byte), true
		go readKeys(ctx, keys, typed)
	}
	fmt.Fprint(screen, screenEnter)
	defer fmt.Fprint(screen, screenLeave)
	tick := time.NewTicker(topEvery)
	defer tick.Stop()
	looks := make(chan func(), 1)
	looking := false
	look := func() {
		if looking {
			return
		}
		looking = true
		go func() {
			page, err := look(ctx, locks, prefix)
			looks <- func() { looking = false; v.take(page, err, time.Now()) }
		}()
	}
	look()
	var behind []byte // the beginning of an incomplete key
	for {
		width, height, err := term.GetSize(int(screen.Fd()))
		if err != nil {
			return pending, internalErrorf("ask the terminal for its size: %w", err)
		}
		if _, err := screen.Write(v.frame(time.Now(), width, height)); err != nil {
			return pending, internalErrorf("write to the terminal: %w", err)
		}
		var alone <-chan time.Time
		if len(behind) > 0 {
			alone = time.After(escapeBound)
		}
		var keys []string
		select {
		case <-tick.C:
			look()
		case done := <-looks:
			done()
		case v.says = <-evictions:
			pending--
			look()
		case b := <-typed:
			keys, behind = decodeKeys(append(behind, b...), false)
		case <-alone:
			keys, behind = decodeKeys(behind, true)
		case <-ctx.Done():
			return pending, context.Cause(ctx)
		}
		for _, key := range keys {
			if v.press(key); v.quits {
				return pending, nil
			}
			if e := v.evicts; e != nil {
				v.evicts = nil
				pending++
				go func() { evictions <- evictNow(evicting, locks, e) }()
			}
		}
	}
}

// escapeBound is how long to wait for the rest of a sequence before its first byte counts as the
// Esc key.
const escapeBound = 100 * time.Millisecond

// readKeys passes on what is typed. A read from a terminal cannot be cancelled, so it ends with the
// program.
func readKeys(ctx context.Context, keys io.Reader, typed chan<- []byte) {
	for {
		b := make([]byte, 256)
		n, err := keys.Read(b)
		select {
		case typed <- b[:n]:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// topMost is how many locks top asks for: more than a screen has lines.
const topMost = 500

// look asks the store once.
func look(ctx context.Context, locks *leasehold.Locker, prefix string) (leasehold.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	return locks.Page(ctx, leasehold.PageOptions{Prefix: prefix, Limit: topMost})
}

// A topEviction is an eviction that the user has confirmed.
type topEviction struct {
	name   string
	holder leasehold.Holder
	reason string
}

// evictNow evicts and returns the outcome as text.
func evictNow(ctx context.Context, locks *leasehold.Locker, e *topEviction) string {
	switch err := evictHolder(ctx, locks, e.name, e.holder, e.reason); {
	case errors.Is(err, errLaterLease):
		return fmt.Sprintf("not evicted: %s has another lease of %s by now", e.holder.Owner, shown(e.name))
	case err == nil:
		return fmt.Sprintf("evicted %s from %s; it learns of it at its next renewal or release at the latest", e.holder.Owner, shown(e.name))
	case errors.Is(err, leasehold.ErrLost):
		return fmt.Sprintf("%s did not hold %s any more", e.holder.Owner, shown(e.name))
	case errors.Is(err, leasehold.ErrUnsupported), errors.Is(err, leasehold.ErrDenied), errors.Is(err, driver.ErrReadOnly):
		return "not evicted: " + plain(err.Error())
	default:
		return "it is not known whether the holder was evicted: " + plain(err.Error())
	}
}

// A screenLine is one line of a frame.
type screenLine struct{ style, text string }

// drawn returns a frame as one text that replaces the screen: exactly height lines of at most width
// cells. If cursor is true, the cursor is shown at the end of the last line.
func drawn(lines []screenLine, width, height int, cursor bool) []byte {
	var b bytes.Buffer
	b.WriteString(cursorOff + screenHome)
	for i := range height {
		if i > 0 {
			b.WriteString(lineEnd)
		}
		b.WriteString(lineRest) // at the start, because after a line of full width it would clear that line's last cell
		if i >= len(lines) {
			continue
		}
		text := cut(lines[i].text, width, "")
		if lines[i].style != "" {
			text = lines[i].style + text + plainText
		}
		b.WriteString(text)
	}
	if cursor {
		b.WriteString(cursorOn)
	}
	return b.Bytes()
}
