package caslock

import (
	"context"
	"errors"
	"iter"
	"time"
)

// ErrChanged is what Write returns when the value is another than the one that was to be
// replaced, so that nothing was written.
var ErrChanged = errors.New("somebody else has written meanwhile")

// ErrUnsent is what Write returns when it has sent nothing, because what is known of the name may be out
// of date, or when nobody was there to take what it sent: the name is read, and the call goes on. An earlier
// write for the same version may still be done.
var ErrUnsent = errors.New("nothing was sent to the store")

// A Version tells one value of a name from all others that the name has had. "" is that of a
// name that never had one, or of which the store has forgotten it.
type Version string

// An Item is what a store has of a name.
type Item struct {
	Name    string  // as it was given to Write
	Value   []byte  // nil: there is none
	Version Version // also of a name whose value was removed, where the store still knows of it

	// Age is for how long at least it has been so, by the store's own clock; 0: unknown. It
	// must never be too long. With it, whoever has just come need not watch a dead holder
	// for a whole TTL.
	Age time.Duration
}

// A Store keeps one small value for each name and replaces it only if nobody else has done so
// meanwhile. It may implement Watcher, Counter and Queuer. It is safe for concurrent use, and no call
// goes on for long after its context has ended.
type Store interface {
	// Read returns what the name has now: a value and the version of just that value. It may be
	// what the name had a moment ago: then the next Write is refused.
	Read(ctx context.Context, name string) (Item, error)

	// Write replaces the value of the version was, and returns the version of the new one.
	// ErrChanged: the name has another version; nothing was written, and no earlier write for that
	// version will be. After any other error it may have been written, now or later. An error that wraps driver.ErrUnsupported,
	// driver.ErrCorrupt, ErrRefused or ErrUnsent says that it was not and will not be.
	//
	// A nil value removes what there is; only Counters are asked for that. The value may be
	// forgotten once it was there for life, if that is not 0, and only by a Counter.
	Write(ctx context.Context, name string, value []byte, was Version, life time.Duration) (Version, error)

	// List returns a page of the items that have values and names which begin with prefix, with the
	// rules of driver.Operator.List but in any order.
	List(ctx context.Context, prefix, after string, limit int) (items []Listed, next string, err error)
}

// A Listed is an Item of a page, or an error that is about the one of that Name alone.
type Listed struct {
	Item
	Err error // nil: there is an Item
}

// A Watcher is a Store that tells of changes, so that waiters need not ask.
type Watcher interface {
	// Watch calls begun, once, as soon as it will miss no change that is made from then on,
	// and heard for each change, one after the other. It returns when ctx ends, or when it may
	// have missed one.
	Watch(ctx context.Context, begun func(), heard func(Item)) error
}

// A Counter is a Store whose versions are numbers that grow with each write, of any name: also
// when a value was removed and another one made. It gives the fences of its names, and what
// nobody needs is removed from it.
type Counter interface {
	// Number is that of a version, above 0, or 0 for "". Versions of one number are of one write.
	Number(v Version) uint64
}

// A Queuer is a Store that also keeps values for names of two parts with a NUL between them, which no name of a
// resource has. Each waiter then has a place of its own, whose order is the number of its value, and the value of the
// resource does not grow with them. Watch tells of those names too, all changes in the order of their numbers, and the
// value of such a name may be forgotten when its life is over. List leaves those names out. Write may refuse them with
// [driver.ErrUnsupported]: then places are in the record, as in other stores.
type Queuer interface {
	Store
	Watcher
	Counter

	// Beside returns the items that have values and whose names have that first part and a second one, in any order, as
	// of when it was called or later.
	Beside(ctx context.Context, first string) iter.Seq2[Item, error]
}
