//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/stores"
)

// A legacy is what the guardian of a run that was killed must know to release its leases.
// It contains secrets and goes from the one to the other, and nowhere else.
type legacy struct {
	Store  string // with its password
	Leases []heritage
}

// A heritage is a lease of the one who died.
type heritage struct{ Name, Owner string }

// legacy returns the text for the guardian, or "" if the leases are to end by themselves.
func (c *child) legacy(leases []*leasehold.Lease) string {
	if c.heirless {
		return ""
	}
	l := legacy{Store: c.app.storeURL}
	for _, lease := range leases {
		l.Leases = append(l.Leases, heritage{lease.Name(), lease.Owner()})
	}
	// A waiter for the smallest name, which holds nothing, then finds the others free.
	slices.SortFunc(l.Leases, func(a, b heritage) int { return strings.Compare(b.Name, a.Name) })
	text, err := json.Marshal(l)
	if err != nil {
		return "" // names that are no UTF-8 were refused; without a legacy the TTL stands
	}
	return string(text)
}

// How soon a store that did not answer is asked again.
const firstAgain, lastAgain = 100 * time.Millisecond, 10 * time.Second

// releaseLegacy releases the leases of a run that was killed, once nothing of its command
// is left. It tries until they have ended by themselves, and once in any case: a renewal
// may have come through unheard. Each is released by its owner, so that nothing is taken
// from who may hold the name by now.
func releaseLegacy(text string, keep, deadline time.Time) {
	var l legacy
	if json.Unmarshal([]byte(text), &l) != nil {
		return
	}
	for pause := firstAgain; !l.release(keep) && time.Until(deadline) > 0; pause = min(2*pause, lastAgain) {
		time.Sleep(min(pause, time.Until(deadline)))
	}
}

// release reports whether there is nothing left to do.
func (l *legacy) release(keep time.Time) (done bool) {
	ctx, cancel := context.WithTimeout(context.Background(), answerBound)
	defer cancel()
	d, err := stores.OpenExisting(ctx, l.Store)
	if err != nil {
		return hopeless(err)
	}
	defer d.Close()
	l.Leases = slices.DeleteFunc(l.Leases, func(h heritage) bool {
		err := h.release(ctx, d, time.Until(keep))
		return err == nil || errors.Is(err, leasehold.ErrLost) || hopeless(err)
	})
	return len(l.Leases) == 0
}

func (h heritage) release(ctx context.Context, d driver.Driver, keep time.Duration) error {
	claim, err := d.Claim(driver.Request{Resource: h.Name, Owner: h.Owner, TTL: scriptTTL})
	if err != nil {
		return err
	}
	return claim.Release(ctx, driver.End{Linger: max(keep, 0)})
}

// hopeless reports whether trying again cannot help.
func hopeless(err error) bool {
	for _, e := range []error{stores.ErrURL, leasehold.ErrUnsupported, leasehold.ErrInvalidName, driver.ErrCorrupt} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
