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
	"github.com/leasehold-go/leasehold/internal/waiting"
	"github.com/leasehold-go/leasehold/stores"
)

// A legacy is what a guardian needs to release the leases of a run that was killed. It contains
// secrets: it is passed only from a run to its guardian.
type legacy struct {
	Store  string // with its password
	Leases []heritage
}

// A heritage is a lease of the killed run.
type heritage struct{ Name, Owner string }

// legacy returns the legacy as text, or "" if nobody may release the leases.
func (c *child) legacy(leases []*leasehold.Lease) string {
	if c.heirless {
		return ""
	}
	l := legacy{Store: c.app.storeURL}
	for _, lease := range leases {
		l.Leases = append(l.Leases, heritage{lease.Name(), lease.Owner()})
	}
	// The smallest name is last. A caller that waits for it, and holds nothing, then finds the
	// others free.
	slices.SortFunc(l.Leases, func(a, b heritage) int { return strings.Compare(b.Name, a.Name) })
	text, err := json.Marshal(l)
	if err != nil {
		return "" // cannot happen: names are UTF-8. Without a legacy the leases expire.
	}
	return string(text)
}

// The pause before a store that did not answer is asked again grows from firstAgain to lastAgain, less
// a random part.
const firstAgain, lastAgain = 100 * time.Millisecond, 10 * time.Second

// releaseLegacy releases the leases of a run that was killed, after all of its command has ended.
// It tries until the leases have expired, and at least once, because a renewal may have been
// applied without an answer. It releases each lease by its owner, so a later holder of the name
// keeps its lease.
func releaseLegacy(text string, keep, deadline time.Time) {
	var l legacy
	if json.Unmarshal([]byte(text), &l) != nil {
		return
	}
	for tries := 0; !l.release(keep) && time.Until(deadline) > 0; tries++ {
		time.Sleep(min(waiting.Backoff(tries, firstAgain, lastAgain), time.Until(deadline)))
	}
}

// release makes one attempt. It reports whether nothing is left to do.
func (l *legacy) release(keep time.Time) (done bool) {
	ctx, cancel := context.WithTimeout(context.Background(), answerBound)
	defer cancel()
	d, err := stores.OpenExisting(ctx, l.Store)
	if err != nil {
		return hopeless(err)
	}
	defer d.Close()
	l.Leases = slices.DeleteFunc(l.Leases, func(h heritage) bool {
		err := releaseOwned(ctx, d, h.Name, h.Owner, max(time.Until(keep), 0))
		return err == nil || errors.Is(err, leasehold.ErrLost) || hopeless(err)
	})
	return len(l.Leases) == 0
}

// hopeless reports whether another attempt cannot succeed.
func hopeless(err error) bool {
	final := []error{stores.ErrURL, leasehold.ErrUnsupported, leasehold.ErrInvalidName, leasehold.ErrInvalidOption, driver.ErrCorrupt}
	return slices.ContainsFunc(final, func(e error) bool { return errors.Is(err, e) })
}
