package sqllock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// wantedMessage begins the message that a place was taken for a resource whose holder listens. A
// hash of the name follows, then one of the name and the place's owner.
const wantedMessage = "wanted "

// A recall is a claim that listens for others. It is registered before its grant, so that no
// message can be missed while the answer is under way, until its lease has ended.
type recall struct {
	resource, owner string
	name, self      string // name: hash of the resource; self: see givenTo
	call            func() // Request.Wanted

	ends   boottime.Instant // guarded by watcher.mu; when its lease ends unless renewed; zero: it holds none
	trying bool             // guarded by watcher.mu; a Try is running, which may have been granted
	came   bool             // another took a place meanwhile
}

// recallState is the claims of a watcher that listen for others.
type recallState struct {
	recalls map[string]map[*recall]bool // by hash of the name; none is empty; guarded by watcher.mu
	many    int                         // guarded by watcher.mu; at this many names, purge looks for leases that have ended
	told    []func()                    // guarded by watcher.mu; calls that tell must make
}

// fewRecalls is how many names with recalls are kept before purge looks for leases that have ended.
const fewRecalls = 64

// recallsAtOnce is how many resources one statement looks at.
const recallsAtOnce = 500

func (s *recallState) init() { s.recalls, s.many = make(map[string]map[*recall]bool), fewRecalls }

// asks is how a claim wants to learn that others wait, as the tables store it.
type asks int

const (
	asksNot  asks = iota
	asksOnce      // one notice until its next renewal
	asksEach      // a notice for each place
)

func asksFor(req *driver.Request) asks {
	switch {
	case req.Wanted == nil:
		return asksNot
	case req.WantedOnce:
		return asksOnce
	default:
		return asksEach
	}
}

// listensFor is how req listens for messages that others wait.
func (d *Driver) listensFor(req *driver.Request) asks {
	if d.watch.listener == nil {
		return asksNot
	}
	return asksFor(req)
}

// recallOf returns the recall of a claim, or nil if it does not listen for others.
func (d *Driver) recallOf(req *driver.Request) *recall {
	if d.listensFor(req) == asksNot {
		return nil
	}
	sum := sha256.Sum256([]byte(req.Resource))
	return &recall{resource: req.Resource, owner: req.Owner, name: hex.EncodeToString(sum[:]), self: givenTo(req), call: req.Wanted}
}

// try records that a Try begins.
func (w *watcher) try(one *recall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.register(one)
	one.trying, one.came = true, false
}

// tried records that a Try has ended. stays means that the claim holds or waits. Otherwise it is
// unregistered until its next Try.
func (w *watcher) tried(one *recall, stays bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !stays {
		w.unregister(one)
	}
	one.trying, one.came = false, false // a grant that arrives from now on says whether others wait
}

// granted records a grant or a renewal for ttl. It reports whether another's place came while the
// answer was under way.
func (w *watcher) granted(one *recall, ttl time.Duration) (came bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.register(one)
	return w.holding(one, ttl)
}

// holding is granted. Requires mu.
func (w *watcher) holding(one *recall, ttl time.Duration) (came bool) {
	came, one.came = one.came, false
	one.ends = boottime.Now().Add(ttl)
	return came
}

// register makes a claim known to wanted. Requires mu.
func (w *watcher) register(one *recall) {
	if len(w.recalls) >= w.many {
		w.purge()
	}
	if w.recalls[one.name] == nil {
		w.recalls[one.name] = make(map[*recall]bool)
	}
	w.recalls[one.name][one] = true
	w.startListening()
}

// purge unregisters claims whose leases have ended without another call. Requires mu.
func (w *watcher) purge() {
	now := boottime.Now()
	for _, all := range w.recalls {
		for one := range all {
			if one.ends != 0 && one.ends < now && !one.trying {
				w.unregister(one)
			}
		}
	}
	w.many = max(fewRecalls, 2*len(w.recalls))
}

// unregister undoes register. Requires mu.
func (w *watcher) unregister(one *recall) {
	delete(w.recalls[one.name], one)
	if len(w.recalls[one.name]) == 0 {
		delete(w.recalls, one.name)
	}
}

// ended records that a claim holds nothing. It goes on to listen if it waits.
func (w *watcher) ended(one *recall, waits bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one.ends = 0; !waits {
		w.unregister(one)
	}
}

// wanted recalls the holders of the resource that the message names, except the owner of the place.
func (w *watcher) wanted(message string) {
	name, who, _ := strings.Cut(message, " ")
	defer w.tell()
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.recalls[name] {
		if one.self != who {
			w.recalled(one)
		}
	}
}

// recalled records that another waits for what a claim holds or is about to get. Requires mu; tell
// must follow.
func (w *watcher) recalled(one *recall) {
	switch {
	case one.ends > boottime.Now():
		w.told = append(w.told, one.call)
	case one.trying:
		one.came = true
	}
}

// tell makes the calls that are due, without mu.
func (w *watcher) tell() {
	w.mu.Lock()
	told := w.told
	w.told = nil
	w.mu.Unlock()
	for _, wanted := range told {
		wanted()
	}
}

// lookForMissed looks for waiters that came while messages may have been missed. It does not report
// errors, because renewals notify holders as well.
func (w *watcher) lookForMissed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := make(map[string]bool)
	for _, all := range w.recalls {
		for one := range all {
			names[one.resource] = true
			break
		}
	}
	if len(names) == 0 {
		return
	}
	w.life.Go(func() {
		for part := range slices.Chunk(slices.Collect(maps.Keys(names)), recallsAtOnce) {
			ctx, stop := context.WithTimeout(w.life, keepPlace) // its connection may be dead and the only one
			rows, err := w.d.look(ctx, w.d.texts.state, list(part...))
			stop()
			if err != nil {
				return
			}
			w.missed(rows)
		}
	})
}

// missed recalls the claims for whose resources others wait.
func (w *watcher) missed(rows []*row) {
	defer w.tell()
	w.mu.Lock()
	defer w.mu.Unlock()
	of := make(map[string]*row, len(rows))
	for _, r := range rows {
		of[r.name] = r
	}
	for _, all := range w.recalls {
		for one := range all {
			if r := of[one.resource]; r != nil && r.Awaited(one.owner) {
				w.recalled(one)
			}
		}
	}
}
