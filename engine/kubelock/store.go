package kubelock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	api "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/record"
)

// Annotations of a Lease.
const (
	recordKey = "leasehold-go.github.io/record" // the record, for which the spec has no room
	nameKey   = "leasehold-go.github.io/name"   // the name of the lock
)

// manager is the name under which the server records changes to a Lease.
const manager = "leasehold"

// store is a caslock.Store, Watcher and Counter.
type store struct{ leases *leases }

// Read reads from the server's own store, not from its cache.
func (s *store) Read(ctx context.Context, name string) (caslock.Item, error) {
	l, err := s.leases.get(ctx, objectName(name))
	if isMissing(err) {
		return caslock.Item{}, nil
	}
	if err != nil {
		return caslock.Item{}, explain(err)
	}
	if its, ok := nameOf(l); !ok || its != name {
		return caslock.Item{}, fmt.Errorf("kubelock: %w: the Lease of %q says that it is that of %q", driver.ErrCorrupt, name, its)
	}
	return itemOf(name, l)
}

// Write changes the Lease if it still has the resourceVersion of was. A missing Lease is first
// created empty, so that its next number is above all earlier ones.
func (s *store) Write(ctx context.Context, name string, value []byte, was caslock.Version, _ time.Duration) (caslock.Version, error) {
	if was == "" {
		l := &coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: objectName(name), Annotations: map[string]string{nameKey: name}}}
		_, err := s.leases.create(ctx, l)
		if err == nil || api.IsAlreadyExists(err) {
			return "", caslock.ErrChanged
		}
		return "", explain(err)
	}
	r, err := record.Decode(value)
	if err != nil {
		return "", err
	}
	change, err := json.Marshal(shownBy(was).change(name, &r, time.Now()))
	if err != nil {
		return "", fmt.Errorf("kubelock: %w: %w", caslock.ErrRefused, err)
	}
	l, err := s.leases.merge(ctx, objectName(name), change)
	switch {
	case api.IsConflict(err), isMissing(err):
		return "", caslock.ErrChanged
	case err != nil:
		return "", explain(err)
	}
	i, err := itemOf(name, l)
	if err != nil {
		return "", fmt.Errorf("kubelock: the Lease was written, and cannot be read: %v", err) // matches no error that says that nothing was written
	}
	return i.Version, nil
}

// Number returns the resourceVersion, which the server raises with each write to any Lease.
func (s *store) Number(v caslock.Version) uint64 { return shownBy(v).Number }

// leastPage is the minimum number of Leases per request, because Leases of other programs are among
// them.
const leastPage = 100

// List implements caslock.Store, in the order of the Leases. after is the last Lease that was read,
// with the server's token for that answer if there is one.
func (s *store) List(ctx context.Context, prefix, after string, limit int) (items []caslock.Listed, next string, err error) {
	last, token, _ := strings.Cut(after, " ")
	page := meta.ListOptions{Limit: int64(max(limit, leastPage)), Continue: token}
	leases, err := s.leases.list(ctx, page)
	if api.IsResourceExpired(err) { // a token lives for minutes; names are in order without it too
		token, page.Continue = "", ""
		leases, err = s.leases.list(ctx, page)
	}
	if err != nil {
		return nil, "", explain(err)
	}
	for i := range leases.Items {
		l := &leases.Items[i]
		name, ok := nameOf(l)
		if l.Name <= last || !ok || !strings.HasPrefix(name, prefix) {
			continue
		}
		if len(items) == limit {
			return items, last + " " + token, nil
		}
		item, err := itemOf(name, l)
		item.Name = name
		items, last = append(items, caslock.Listed{Item: item, Err: err}), l.Name
	}
	if leases.Continue != "" {
		next = last + " " + leases.Continue
	}
	return items, next, nil
}

// errEnded means that the server has ended the watch, as it occasionally does.
var errEnded = errors.New("kubelock: the watch has ended")

// Watch implements caslock.Watcher.
func (s *store) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	now, err := s.leases.list(ctx, meta.ListOptions{Limit: 1})
	if err != nil {
		return explain(err)
	}
	w, err := s.leases.watch(ctx, meta.ListOptions{ResourceVersion: now.ResourceVersion})
	if err != nil {
		return explain(err)
	}
	defer w.Stop()
	begun()
	for event := range w.ResultChan() {
		l, ok := event.Object.(*coordination.Lease)
		if !ok {
			return explain(api.FromObject(event.Object))
		}
		name, ok := nameOf(l)
		if !ok {
			continue
		}
		i, err := itemOf(name, l)
		if err != nil {
			continue // a waiter then reads it
		}
		if event.Type == watch.Deleted {
			i.Value = nil
		}
		heard(i)
	}
	return errEnded
}

// numberOf parses a resourceVersion. It is a number, because Kubernetes promises that two of them
// can be compared.
func numberOf(l *coordination.Lease) (uint64, error) {
	n, err := strconv.ParseUint(l.ResourceVersion, 10, 64)
	if err != nil || n > maxNumber {
		return 0, fmt.Errorf("kubelock: %w: resourceVersion %q is no number that a fence can have", driver.ErrUnsupported, l.ResourceVersion)
	}
	return n, nil
}

// maxNumber leaves room for fences to grow indefinitely.
const maxNumber = 1 << 53
