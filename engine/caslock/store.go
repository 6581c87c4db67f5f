package caslock

import (
	"context"
	"errors"
	"iter"
	"time"
)

// ErrChanged is returned by Write if the value is not the one to be replaced. Nothing was
// written.
var ErrChanged = errors.New("somebody else has written meanwhile")

// ErrUnsent is returned by Write if it has sent nothing, because its knowledge of the name may
// be out of date, or if nobody received what it sent. The caller reads the name and continues.
// An earlier write for the same version may still be done.
var ErrUnsent = errors.New("nothing was sent to the store")

// A Version distinguishes one value of a name from all others that the name has had. "" is the
// version of a name that never had a value, or that the store has forgotten.
type Version string

// An Item is a name and its value.
type Item struct {
	Name    string  // as given to Write
	Value   []byte  // nil: no value
	Version Version // also of a removed value, if the store still knows it

	// Age is how long the value has been unchanged at least, by the store's own clock; 0:
	// unknown. It must never be too long. With it, a process that has just started need not
	// watch a dead holder for a whole TTL.
	Age time.Duration
}

// A Store keeps one small value for each name and replaces it only if it is unchanged. It may
// implement Watcher, Counter and Queuer. It is safe for concurrent use, and no call outlives its
// context for long. An error without an answer of the store behind it wraps [ErrUnsent], a
// [net.Error] or the error of the context.
type Store interface {
	// Read returns the current value of the name and the version of exactly that value. It may
	// return a value from a moment ago: then the next Write is refused.
	Read(ctx context.Context, name string) (Item, error)

	// Write replaces the value of version was, and returns the new version. ErrChanged means
	// that the name has another version. Then nothing was written, and no earlier write for that
	// version will be. After any other error the value may have been written, now or later. An
	// error that wraps driver.ErrUnsupported, driver.ErrCorrupt, ErrRefused or ErrUnsent means
	// that it was not and will not be.
	//
	// A nil value removes the current one; only Counters get such calls. If there is none, the
	// version may stay. If life is not 0, the store may forget the value after that time; only
	// Counters get such calls.
	Write(ctx context.Context, name string, value []byte, was Version, life time.Duration) (Version, error)

	// List returns a page of the items that have values and names with the prefix. The rules of
	// driver.Operator.List apply, except that the order is free.
	List(ctx context.Context, prefix, after string, limit int) (items []Listed, next string, err error)
}

// A Listed is an Item of a page, or an error that concerns only the item of that Name.
type Listed struct {
	Item
	Err error // nil: Item is valid
}

// A Watcher is a Store that reports changes, so that waiters need not poll.
type Watcher interface {
	// Watch calls begun once, as soon as it will miss no later change, and heard for each
	// change, one after the other. It returns when ctx ends, or when it may have missed a
	// change.
	Watch(ctx context.Context, begun func(), heard func(Item)) error
}

// A Counter is a Store whose versions are numbers that grow with each write of any name, even
// after a value was removed and created again. It provides the fences of its names, and unused
// values are removed from it.
type Counter interface {
	// Number returns the number of a version, above 0, or 0 for "". Versions with equal numbers
	// are from one write.
	Number(v Version) uint64
}

// A Queuer is a Store that also keeps values for names of two parts with a NUL between them; no
// resource has such a name. Each waiter then has a place of its own, ordered by the number of
// its first value, and the value of the resource does not grow with the waiters. Watch also reports
// changes of those names, all in the order of their numbers. The value of such a name may be
// forgotten after its life. List omits those names. Write may refuse them with
// [driver.ErrUnsupported]: then places are in the record, as in other stores.
type Queuer interface {
	Store
	Watcher
	Counter

	// Beside returns the items with values whose names have the given first part and any second
	// one, in any order. They are as of the call or later.
	Beside(ctx context.Context, first string) iter.Seq2[Item, error]
}
