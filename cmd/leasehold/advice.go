package main

import (
	"errors"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/polyglot"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/stores"
)

// advice says what to do next about an error that does not say it itself.
func (a *app) advice(err error) string {
	var busy *leasehold.BusyError
	switch {
	case errors.Is(err, polyglot.ErrMissing):
		return "" // which says it
	case errors.As(err, &busy) && busy.Holder.Owner.Reveal() == "" && busy.Holder.Note != "":
		return "See when it began and ends: leasehold show NAME. Let it run again now: leasehold reset NAME"
	case errors.Is(err, leasehold.ErrBusy):
		return "See who holds it: leasehold show NAME. Wait longer with --wait SECONDS"
	case errors.Is(err, leasehold.ErrLost):
		return "The lease is over and another may hold NAME: undo what it guarded, or acquire it again"
	case errors.Is(err, driver.ErrCorrupt):
		return "Nothing was changed. Repair or remove what is named, or choose another store with --store"
	case errors.Is(err, leasehold.ErrUnsupported):
		return "This store can never do that; choose another with --store"
	case exitCode(err) == exitDenied:
		return "Check user, password and rights on the store" + a.named() + "; its page in the documentation has the rights that locks need"
	case exitCode(err) == exitUnavailable:
		return "Check the store" + a.named() + ", its address and the network to it, or choose another with --store"
	}
	return ""
}

// named is the chosen store in brackets: a configuration file or the environment may have
// named it. It is "" before one is chosen.
func (a *app) named() string {
	if a.storeURL == "" {
		return ""
	}
	return " (" + stores.Redact(a.storeURL) + ")"
}
