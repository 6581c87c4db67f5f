package main

import (
	"errors"
	"strings"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/polyglot"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/stores"
)

// advice returns what to do about err, unless its text says that already.
func (a *app) advice(err error) string {
	var busy *leasehold.BusyError
	switch {
	case errors.Is(err, polyglot.ErrMissing):
		return "" // its text has the advice
	case errors.As(err, &busy) && busy.Holder.Owner.Reveal() == "" && busy.Holder.Note != "":
		return "See when it began and ends: " + a.line("show", busy.Resource) + "\nLet it run again now: " + a.line("reset", busy.Resource)
	case errors.As(err, &busy):
		return "See who holds it: " + a.line("show", busy.Resource) + "\nWait longer with --wait TIME"
	case errors.Is(err, leasehold.ErrBusy):
		return "Wait longer with --wait TIME"
	case removed(err):
		return "It holds nothing. Run it again to wait as a new waiter"
	case errors.Is(err, leasehold.ErrLost):
		return "The lease is over, and another process may hold the lock: undo what it guarded, or acquire it again"
	case errors.Is(err, leasehold.ErrTooHeavy):
		return "No release makes room for it. Ask for less with --weight, or see who has set a limit: leasehold limit NAME"
	case errors.Is(err, driver.ErrCorrupt):
		return "Nothing was changed. Repair or remove the record that is named, or choose another store with --store"
	case errors.Is(err, leasehold.ErrUnsupported):
		return "This store can never do that. Choose another with --store"
	case exitCode(err) == exitDenied:
		return "Check user, password and rights on the store" + a.named() + ". Its page in docs/engines lists the rights that locks need"
	case exitCode(err) == exitUnavailable:
		return "Check the store" + a.named() + ", its address and the network to it, or choose another with --store"
	}
	return ""
}

// line returns a command line that runs a command of this program on name, at the chosen store.
func (a *app) line(command, name string) string {
	words := []string{"leasehold"}
	if a.flags != nil && a.flags.Changed(keyStore) {
		words = append(words, "--store", stores.Redact(a.flags.Lookup(keyStore).Value.String()))
	}
	words = append(words, command)
	if strings.HasPrefix(name, "-") {
		words = append(words, "--")
	}
	return shellLine(append(words, name)...)
}

// shellLine returns a command line for a POSIX shell. It quotes words where necessary.
func shellLine(words ...string) string {
	for i, word := range words {
		if word == "" || strings.Trim(word, shellPlain) != "" {
			words[i] = shellQuote(word)
		}
	}
	return strings.Join(words, " ")
}

// shellPlain lists the characters that need no quotes in a shell.
const shellPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-"

// named returns the chosen store in brackets, because a configuration file or the environment may
// have set it. It returns "" before a store is chosen.
func (a *app) named() string {
	if a.storeURL == "" {
		return ""
	}
	return " (" + stores.Redact(a.storeURL) + ")"
}
