package leasehold_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/locktest"
)

// A traced is one path through the Locker, and what its waits and holds come to.
type traced struct {
	name   string
	path   func(t *testing.T, p *paths)
	waits  string // the ends, sorted
	holds  string
	causes string // of what is lost
}

// paths is what they go through.
type paths struct {
	*leasehold.Locker
	mine   *locktest.Faulty
	other  *leasehold.Locker
	events *events
}

func background(name string, p *paths, opts ...leasehold.Option) (*leasehold.Lease, error) {
	return p.Acquire(context.Background(), name, opts...)
}

var tracedPaths = []traced{
	{"released", func(t *testing.T, p *paths) {
		acquire(t, p.Locker, "a").Release(t.Context())
	}, "granted", "released", ""},
	{"released twice", func(t *testing.T, p *paths) {
		lease := acquire(t, p.Locker, "a")
		lease.Release(t.Context())
		lease.Release(t.Context())
	}, "granted", "released", ""},
	{"released with an unknown outcome, and then once more", func(t *testing.T, p *paths) {
		lease := acquire(t, p.Locker, "a")
		p.mine.Always(locktest.OpRelease, locktest.LoseRequest)
		if err := lease.Release(t.Context()); err == nil || errors.Is(err, leasehold.ErrLost) {
			t.Errorf("Release: %v; want an unknown outcome", err)
		}
		p.mine.Always(locktest.OpRelease, nil)
		lease.Release(t.Context())
	}, "granted", "unknown", ""},
	{"its answer lost, and its TTL over", func(t *testing.T, p *paths) {
		lease := acquire(t, p.Locker, "a")
		p.mine.Always(locktest.OpRelease, locktest.LoseReply)
		lease.Release(t.Context())
		time.Sleep(time.Minute)
	}, "granted", "unknown", ""},
	{"never released, and the Locker closed", func(t *testing.T, p *paths) {
		acquire(t, p.Locker, "a")
		time.Sleep(ttl) // renewed meanwhile
		p.Close()
		time.Sleep(time.Minute)
	}, "granted", "lost", "expired"},
	{"lost by its deadline, then released", func(t *testing.T, p *paths) {
		lease := acquire(t, p.Locker, "a", leasehold.NoRenew())
		time.Sleep(time.Minute)
		lease.Release(t.Context())
	}, "granted", "lost", "expired"},
	{"lost because all renewals fail", func(t *testing.T, p *paths) {
		lease := acquire(t, p.Locker, "a")
		p.mine.Always(locktest.OpRenew, locktest.LoseRequest)
		time.Sleep(time.Minute)
		lease.Release(t.Context())
	}, "granted", "lost", "expired"},
	{"lost by MaxHold", func(t *testing.T, p *paths) {
		acquire(t, p.Locker, "a", leasehold.MaxHold(time.Second))
		time.Sleep(time.Minute)
	}, "granted", "lost", "max_hold"},
	{"lost while it is granted", func(t *testing.T, p *paths) {
		p.mine.Next(locktest.OpTry, locktest.SlowReply(20*time.Second))
		if _, err := p.Acquire(t.Context(), "a", leasehold.Wait(time.Second)); err == nil {
			t.Error("granted")
		}
	}, "gave_up", "", ""},
	{"evicted", func(t *testing.T, p *paths) {
		lease := acquire(t, p.Locker, "a")
		if err := p.other.Evict(t.Context(), "a", lease.Owner(), "test"); err != nil {
			t.Fatal(err)
		}
		wantErr(t, context.Cause(lease.Context()), leasehold.ErrEvicted)
		lease.Release(t.Context())
	}, "granted", "evicted", "evicted"},
	{"resumed, beside who left it", func(t *testing.T, p *paths) {
		lease := acquire(t, p.Locker, "a")
		resumed, err := p.Resume(t.Context(), "a", lease.Owner())
		if err != nil {
			t.Fatal(err)
		}
		resumed.Release(t.Context())
		time.Sleep(time.Minute)
	}, "granted resumed", "lost released", "engine"},
	{"not resumed", func(t *testing.T, p *paths) {
		_, err := p.Resume(t.Context(), "a", "nobody")
		wantErr(t, err, leasehold.ErrLost)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p.Resume(ctx, "a", "nobody")
		p.mine.Always(locktest.OpRenew, locktest.LoseRequest)
		p.Resume(t.Context(), "a", "nobody")
	}, "failed failed gave_up", "", ""},
	{"refused", func(t *testing.T, p *paths) {
		held := acquire(t, p.Locker, "a")
		_, err := p.TryAcquire(t.Context(), "a")
		wantErr(t, err, leasehold.ErrBusy)
		_, err = background("a", p, leasehold.Wait(0))
		wantErr(t, err, leasehold.ErrBusy)
		held.Release(t.Context())
		acquire(t, p.other, "b")
		_, err = p.TryAcquire(t.Context(), "b")
		wantErr(t, err, leasehold.ErrBusy)
	}, "granted refused refused refused", "released", ""},
	{"gave up", func(t *testing.T, p *paths) {
		acquire(t, p.other, "b")
		held := acquire(t, p.Locker, "a")
		for _, name := range []string{"a", "b"} {
			_, err := background(name, p, leasehold.Wait(time.Second))
			wantErr(t, err, leasehold.ErrBusy)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err = p.Acquire(ctx, name)
			wantErr(t, err, context.DeadlineExceeded)
			cancel()
			_, err = p.Acquire(ctx, name)
			wantErr(t, err, context.DeadlineExceeded)
		}
		held.Release(t.Context())
	}, "gave_up gave_up gave_up gave_up gave_up gave_up granted", "released", ""},
	{"without an answer within Wait", func(t *testing.T, p *paths) {
		p.mine.Always(locktest.OpTry, locktest.HangRequest)
		_, err := background("a", p, leasehold.Wait(time.Second))
		wantErr(t, err, context.DeadlineExceeded)
		p.mine.Always(locktest.OpTry, nil)
	}, "gave_up", "", ""},
	{"failed", func(t *testing.T, p *paths) {
		p.mine.Next(locktest.OpTry, locktest.LoseRequest)
		if _, err := background("a", p, leasehold.Wait(time.Second)); err == nil {
			t.Error("no error")
		}
	}, "failed", "", ""},
	{"closed while it waits", func(t *testing.T, p *paths) {
		acquire(t, p.other, "a")
		acquire(t, p.Locker, "b")
		var waits sync.WaitGroup
		for _, name := range []string{"a", "b"} {
			waits.Go(func() { background(name, p) })
		}
		synctest.Wait()
		p.Close()
		waits.Wait()
		_, err := background("a", p) // begins nothing
		wantErr(t, err, leasehold.ErrClosed)
		time.Sleep(time.Minute)
	}, "gave_up gave_up granted", "lost", ""},
	{"of a bad name, a bad option", func(t *testing.T, p *paths) {
		background("", p)
		background("a", p, leasehold.TTL(-1))
		p.Resume(t.Context(), "a", "")
	}, "", "", ""},
	{"nested, the outer released first", func(t *testing.T, p *paths) {
		outer := acquire(t, p.Locker, "a")
		inner, err := p.Acquire(outer.Context(), "a", leasehold.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Acquire(inner.Context(), "a")
		wantErr(t, err, leasehold.ErrDeadlock)
		time.Sleep(ttl)
		outer.Release(t.Context())
		time.Sleep(ttl)
		inner.Release(t.Context())
	}, "failed granted nested", "released released", ""},
	{"nested, and both lost", func(t *testing.T, p *paths) {
		outer := acquire(t, p.Locker, "a", leasehold.NoRenew())
		inner, err := p.Acquire(outer.Context(), "a", leasehold.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		inner.Release(t.Context())
		outer.Release(t.Context())
	}, "granted nested", "lost lost", ""},
	{"handed over", func(t *testing.T, p *paths) {
		held := acquire(t, p.Locker, "a")
		var next sync.WaitGroup
		next.Go(func() { acquire(t, p.Locker, "a").Release(context.Background()) })
		synctest.Wait()
		held.Release(t.Context())
		next.Wait()
	}, "granted handed_over", "released released", ""},
	{"handed over to one who gives up at the same time", func(t *testing.T, p *paths) {
		for range 100 {
			held := acquire(t, p.Locker, "a")
			ctx, cancel := context.WithCancel(t.Context())
			var next sync.WaitGroup
			next.Go(func() {
				if lease, err := p.Acquire(ctx, "a"); err == nil {
					lease.Release(context.Background())
				}
			})
			synctest.Wait()
			next.Go(cancel)
			held.Release(t.Context())
			next.Wait()
		}
	}, "*", "*", ""},
	{"lost while it is handed over", func(t *testing.T, p *paths) {
		for range 100 {
			held := acquire(t, p.Locker, "a")
			var next sync.WaitGroup
			next.Go(func() { acquire(t, p.Locker, "a").Release(context.Background()) })
			synctest.Wait()
			next.Go(func() { p.other.Evict(context.Background(), "a", held.Owner(), "test") })
			held.Release(t.Context())
			next.Wait()
		}
	}, "*", "*", ""},
	{"several at once", func(t *testing.T, p *paths) {
		other := acquire(t, p.other, "b")
		time.AfterFunc(time.Second, func() { other.Release(context.Background()) })
		all, err := p.AcquireAll(t.Context(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		all.Release(t.Context())
		acquire(t, p.other, "b")
		_, err = p.AcquireAll(t.Context(), []string{"a", "b"}, leasehold.Wait(time.Second))
		wantErr(t, err, leasehold.ErrBusy)
	}, "gave_up granted granted granted refused refused", "released released released", ""},
	{"as a leader, twice", func(t *testing.T, p *paths) {
		ctx, cancel := context.WithCancel(t.Context())
		terms := 0
		p.Lead(ctx, "a", func(context.Context) error {
			if terms++; terms == 2 {
				cancel()
			}
			return nil
		})
	}, "granted granted", "released released", ""},
	{"once in a period", func(t *testing.T, p *paths) {
		for range 2 {
			p.Do(t.Context(), "a", func(context.Context) error { return nil }, leasehold.OncePer(time.Hour))
		}
	}, "granted refused", "released", ""},
	{"a panic under the lease", func(t *testing.T, p *paths) {
		defer func() { recover() }()
		p.Do(t.Context(), "a", func(context.Context) error { panic("test") })
	}, "granted", "released", ""},
}
