package caslock

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/record"
)

const (
	// maxTries is how often a call starts over because the record has changed meanwhile.
	maxTries = 24
	// maxPause bounds a pause between two of them.
	maxPause = 100 * time.Millisecond
	// emptyFor is how long a record without claims may be needed, in a store that removes it.
	emptyFor = time.Minute
)

// An uncertain is a write without an answer that may be served late.
type uncertain struct {
	open bool
	was  Version // it is served only while the name has this one
}

// change lets f change the record of a resource, and writes it if f says so. It calls f again when
// the record has changed meanwhile; the results of the last call count. before is the claim's last
// write without an answer. When change returns nil, that write has been served or never will be.
// After an error, before may be the write of this call. change returns the record as it is then.
func (d *Driver) change(ctx context.Context, name string, before *uncertain, f func(*view) (write bool)) (*record.Record, error) {
	ctx, leave, err := d.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	s := d.resource(name)
	var unsent error // why the last write was not sent
	refused := ""    // the nonce of the last write, if that was refused or has no answer, and may have been done
	for try := range maxTries {
		start := time.Now()
		v, sure, err := d.current(ctx, s, try > 0 || before.open)
		if err != nil {
			return nil, err
		}
		if d.number != nil && d.number(v.version) > d.number(before.was) {
			before.open = false // any other version may be older, because reads may be
		}
		if refused != "" && slices.Contains(trail(v.Nonce), refused) {
			return &v.Record, nil
		}
		switch write := f(&v); {
		case !write && !sure:
			continue
		case !write && !before.open:
			return &v.Record, nil
		}
		blank := d.blank(&v)
		if d.crowd != nil && !blank {
			d.crowd.mark(s, &v)
		}
		unsent = nil
		switch err = d.write(ctx, s, &v, before); {
		case err == nil && !blank:
			return &v.Record, nil
		case errors.Is(err, ErrUnsent) && ctx.Err() == nil:
			unsent = err
			giveWay(ctx, time.Since(start), try, v.patient)
		case err != nil && !errors.Is(err, ErrChanged) && !links.Again(ctx, err):
			return nil, failed(ctx, err)
		case err != nil:
			if refused = v.next; blank {
				refused = ""
			}
			if !links.Again(ctx, err) { // otherwise the write may have been done; read over another connection
				giveWay(ctx, time.Since(start), try, v.patient)
			}
		}
	}
	return nil, cmp.Or(unsent, ErrContended)
}

// same reports whether two versions belong to one write.
func (d *Driver) same(a, b Version) bool {
	return a == b || d.number != nil && d.number(a) == d.number(b)
}

// current returns what is known of a resource. It reads the record if nothing is known, or if fresh
// is set.
func (d *Driver) current(ctx context.Context, s *resource, fresh bool) (v view, sure bool, err error) {
	v, highest, known := s.look()
	if sure = fresh || !known; sure {
		i, err := d.read(ctx, s.name)
		if err == nil {
			i.Name = s.name
			err = d.take(s, i)
		}
		if err != nil {
			return v, sure, failed(ctx, err)
		}
		v, highest, _ = s.look()
	}
	v.next, v.floor = newNonce(), highest+1
	if d.number != nil {
		v.floor = max(v.floor, d.number(v.version)+1)
	}
	return v, sure, nil
}

// read reads a name, over another connection if one is silent.
func (d *Driver) read(ctx context.Context, name string) (i Item, err error) {
	i, err = d.store.Read(ctx, name)
	for links.Again(ctx, err) {
		i, err = d.store.Read(ctx, name)
	}
	d.lanes.Answered(err)
	return i, err
}

// blank empties the view's record and reports true if the store numbers its writes, has lost the
// record, and this process remembers its fences. The empty record must be written first: its
// number is the fence that the next write starts from.
func (d *Driver) blank(v *view) bool {
	if d.number == nil || v.version != "" || v.floor == 1 {
		return false
	}
	v.Record = record.Record{}
	return true
}

// write replaces the record by v, which becomes the record that others see. If it does, or v has
// the version of an earlier write, that one has been served or never will be.
func (d *Driver) write(ctx context.Context, s *resource, v *view, before *uncertain) error {
	v.Nonce = followed(v.next, v.Nonce)
	value, life := d.encode(v, before.open)
	version, err := d.store.Write(ctx, s.name, value, v.version, life)
	d.lanes.Answered(err)
	switch changed := errors.Is(err, ErrChanged); {
	case err == nil, changed && d.same(v.version, before.was):
		before.open = false
	case before.open && d.number != nil: // v has that version, or an older one
	case !changed && !certain(err):
		*before = uncertain{true, v.version}
	}
	if err != nil {
		s.doubt()
		return err
	}
	d.fill(&v.Record, version)
	if d.number != nil && d.number(version) > 0 && s.newer(d.number, version) { // the watch was faster than the answer
		s.raise(v.Record.Fence)
	} else {
		d.recall(s.note(v.Record, version, time.Now(), &v.clock))
	}
	return nil
}

// encode returns the record to be written, and how long it may be needed; nil: it must be removed.
// open says that a write without an answer may be served late; with v.stays, a call may have made
// one that this process does not know of. A removal need not refuse it: where nothing is to remove,
// a store may leave the version as it is.
func (d *Driver) encode(v *view, open bool) (value []byte, life time.Duration) {
	if d.number == nil {
		return v.encoded(), 0
	}
	if v.version == "" { // the fence of a grant is then the new version's number; see fill
		v.Record.Fence = 0
		for i := range v.Claims {
			v.Claims[i].Fence = 0
		}
	}
	// A limit stays, and so does a fence that the number of the next write would not exceed.
	if v.Limit > 0 || max(v.Record.Fence, v.Raised) > d.number(v.version)+1 {
		return v.encoded(), 0
	}
	if len(v.Claims) == 0 && v.version != "" && v.Beside == record.Nobody && !open && !v.stays {
		return nil, 0
	}
	life = emptyFor
	if v.Beside != record.Nobody { // the mark must outlive the places beside the record
		life = placeLife
	}
	for i := range v.Claims {
		life = max(life, v.Claims[i].TTL+drift(v.Claims[i].TTL))
	}
	return v.encoded(), life
}

// giveWay pauses for other writers of the record, for about as long as the write took. Waiters
// pause longer than holders.
func giveWay(ctx context.Context, took time.Duration, tries int, patient bool) {
	if tries > 0 {
		most := min(maxPause, time.Duration(tries)*took/2)
		if patient {
			most = min(10*maxPause, 4*time.Duration(tries)*took)
		}
		_ = pause.For(ctx, rand.N(most+time.Microsecond)) // if ctx ends, the next call reports it
	}
}

// certain reports whether a write that failed with err was surely not done.
func certain(err error) bool {
	return errors.Is(err, ErrRefused) || errors.Is(err, ErrUnsent) || errors.Is(err, driver.ErrUnsupported) || errors.Is(err, driver.ErrCorrupt)
}

// unanswered reports whether err is not an answer of a store.
func unanswered(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok { // such as a refused connection
		return true
	}
	return errors.Is(err, ErrUnsent) || errors.Is(err, links.ErrSilent) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
