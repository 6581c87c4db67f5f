package memcached

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/memcachelock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// Whoever takes a lock with add, as every recipe does, and ours exclude each other.
func TestMemcachedForeignLocks(t *testing.T) {
	t.Parallel()
	m := servers.StartMemcached(t)
	l := openLocker(t, 3*time.Second, m.Addr())
	client := memcache.New(m.Addr())
	defer client.Close()
	theirs := &memcache.Item{Key: "lock:shared", Value: []byte("their-token"), Expiration: 60}

	lease := mustAcquire(t, l, "shared")
	if err := client.Add(theirs); !errors.Is(err, memcache.ErrNotStored) {
		t.Errorf("their add beside our lease: %v", err)
	}
	mustRelease(t, lease)
	if err := client.Add(theirs); err != nil {
		t.Fatalf("their add after our release: %v", err)
	}
	_, err := l.TryAcquire(t.Context(), "shared")
	if busy, ok := errors.AsType[*leasehold.BusyError](err); !ok || busy.Holder.Owner.Reveal() != "their-token" {
		t.Errorf("beside their lock: %v", err)
	}
	if err := client.Delete("lock:shared"); err != nil {
		t.Fatal(err)
	}

	// Their bare delete may hit our lease. We notice, and do not do the same to them.
	lease = mustAcquire(t, l, "shared")
	deadline := lease.Deadline()
	if err := client.Delete("lock:shared"); err != nil {
		t.Fatal(err)
	}
	if err := client.Add(theirs); err != nil {
		t.Fatal(err)
	}
	lost(t, lease, deadline)
	if err := lease.Release(t.Context()); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Release of a deleted lease: %v, want ErrLost", err)
	}
	if item, err := client.Get("lock:shared"); err != nil || string(item.Value) != "their-token" {
		t.Errorf("their lock: %v", err)
	}
}

// Servers that cannot serve a lease are refused with an error that says what to do.
func TestMemcachedUnfitServers(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "memcached") // not below t.TempDir, which is for root alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	auth := filepath.Join(dir, "users")
	err = errors.Join(os.WriteFile(auth, []byte("user:canary\n"), 0o644), os.Chmod(dir, 0o755))
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		args []string
		want error
	}{
		"no versions": {[]string{"-C"}, memcachelock.ErrNoCAS},
		"password":    {[]string{"-Y", auth}, memcachelock.ErrAuth},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := servers.StartMemcached(t, c.args...)
			_, err := openLocker(t, time.Minute, m.Addr()).Acquire(t.Context(), "n")
			if !errors.Is(err, c.want) || !errors.Is(err, driver.ErrUnsupported) {
				t.Errorf("Acquire: %v, want %v", err, c.want)
			}
			if got := m.Must(t, "gets lock:n"); what == "no versions" && got != "END" {
				t.Errorf("something was stored: %q", got)
			}
		})
	}
	port := servers.FreePorts(t, 1)[0]
	if _, err := openLocker(t, time.Minute, "127.0.0.1:"+fmt.Sprint(port)).Acquire(t.Context(), "n"); err == nil || errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("Acquire without a server: %v", err)
	}
}
