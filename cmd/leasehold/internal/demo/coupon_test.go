package demo

import (
	"context"
	"encoding/json"
	"io"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// The server that is to be stopped may lose its lease before it is: it begins again, as the
// others wait for it.
func TestCouponServerBeginsAgainUntilItIsReady(t *testing.T) {
	t.Parallel()
	s := newCoupon()
	b, err := createBooks(t.Context(), "", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer b.drop(context.Background())
	if err := s.open(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	lines := make(chan []byte, 2)
	lines <- strconv.AppendInt(nil, time.Now().UnixNano(), 10) // opens
	lines <- nil                                               // goes on
	said, out := io.Pipe()
	w := &worker{order: order{Resource: "coupons", TTL: time.Minute}, books: b, locks: losingFirst(t), lines: lines, out: json.NewEncoder(out)}
	go func() {
		if err := s.workStopped(t.Context(), w); err != nil {
			t.Error(err)
		}
		out.Close()
	}()
	var all []string
	for words := json.NewDecoder(said); ; {
		var m message
		if words.Decode(&m) != nil {
			break
		}
		all = append(all, m.What)
	}
	if len(all) != 2 || all[0] != ready || all[1] != done {
		t.Errorf("said %q; want that it is ready, and done", all)
	}
}

// losingFirst is a Locker whose first lease is lost when Acquire returns.
func losingFirst(t *testing.T) *leasehold.Locker {
	d := memory.New()
	first := sync.OnceFunc(func() {
		st, err := d.Inspect(context.Background(), "coupons")
		if err != nil || len(st.Holders) != 1 {
			t.Errorf("Inspect: %+v, %v", st, err)
			return
		}
		if err := d.Evict(context.Background(), "coupons", st.Holders[0].Owner.Reveal(), "a test"); err != nil {
			t.Error(err)
		}
	})
	l, err := leasehold.New(d, &leasehold.Options{Trace: locktest.On(leasehold.StepGranted, func(leasehold.Event) { first() })})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}
