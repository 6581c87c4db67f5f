package served

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/e2e/described"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// Whoever waits through an instance and is removed from the queue there is told so: a program in Go, and a command. It has
// no place any more, and is not granted the lease later. Who waits elsewhere is not removed, and waits on.
func TestRemovedFromTheQueue(t *testing.T) {
	t.Parallel()
	onStores(t, []string{"redis", "postgresql", "etcd", "nats"}, func(t *testing.T, s *service) {
		here, other := "http://"+described.Balance(t, s.instances[0].addr()), "http://"+described.Balance(t, s.instances[1].addr())
		if status, a := post(t, here+wire.Acquire, `{"name":"job","owner":"holder","ttl_ms":600000}`); status != 200 {
			t.Fatalf("acquire: %d %v", status, a)
		}
		waiter := func() (handle string) {
			claimtest.Eventually(t, "somebody waits", func() bool {
				if w := shown(t, here, "job").Waiters; len(w) == 1 {
					handle = w[0].Handle
				}
				return handle != ""
			})
			return handle
		}
		remove := func(url string) (int, wire.Answer) {
			return post(t, url+wire.Remove, `{"name":"job","handle":"`+waiter()+`","reason":"wrong branch"}`)
		}
		isGone := func() {
			t.Helper()
			claimtest.Eventually(t, "nobody waits", func() bool { return len(shown(t, here, "job").Waiters) == 0 })
		}

		locks, _ := locker(t, strings.TrimPrefix(here, "http://"))
		failed := make(chan error, 1)
		go func() {
			_, err := locks.Acquire(t.Context(), "job")
			failed <- err
		}()
		if status, a := remove(other); status != 501 {
			t.Errorf("by another instance: %d %v", status, a)
		}
		if status, a := remove(here); status != 200 {
			t.Fatalf("%d %v", status, a)
		}
		if err := <-failed; !errors.Is(err, leasehold.ErrLost) || !strings.Contains(err.Error(), "removed from the queue: wrong branch") {
			t.Errorf("Acquire: %v", err)
		}
		isGone()

		run := exec.Command(os.Getenv(binaryEnv), "--store", here, "run", "job", "--", "touch", t.TempDir()+"/ran")
		said := make(chan string, 1)
		go func() {
			out, _ := run.CombinedOutput()
			said <- string(out)
		}()
		if status, a := remove(here); status != 200 {
			t.Fatalf("%d %v", status, a)
		}
		if out := <-said; run.ProcessState.Success() || !strings.Contains(out, "removed from the queue: wrong branch") {
			t.Errorf("run: %v, %s", run.ProcessState, out)
		}
		isGone()

		direct := exec.Command(os.Getenv(binaryEnv), "--store", s.instances[0].store, "run", "job", "--", "true")
		go func() {
			out, _ := direct.CombinedOutput()
			said <- string(out)
		}()
		if status, a := remove(here); status != 501 || !strings.Contains(a.Error, "without the service") {
			t.Errorf("of who waits without the service: %d %v", status, a)
		}
		if status, a := post(t, here+wire.Release, `{"name":"job","owner":"holder"}`); status != 200 {
			t.Errorf("release: %d %v", status, a)
		}
		select {
		case out := <-said:
			if !direct.ProcessState.Success() {
				t.Errorf("who was not removed: %v, %s", direct.ProcessState, out)
			}
		case <-time.After(time.Minute):
			t.Error("who was not removed is not granted the lock")
		}
	})
}

// TestRemovedPlaceIsGranted: Redis grants to the first place in the queue by itself, also to the place of a waiter that has
// just been removed. The waiter does not get that lease.
func TestRemovedPlaceIsGranted(t *testing.T) {
	t.Parallel()
	onStores(t, []string{"redis"}, func(t *testing.T, s *service) {
		url := "http://" + s.instances[0].addr()
		const waits = `{"name":"job","owner":"waiter","ttl_ms":600000,"wait_ms":30000}`
		call := func(want int, path, body string) {
			t.Helper()
			if status, a := post(t, url+path, body); status != want {
				t.Errorf("%s %s: %d %+v, want %d", path, body, status, a, want)
			}
		}
		call(200, wire.Acquire, `{"name":"job","owner":"holder","ttl_ms":600000}`)
		waited := make(chan struct{})
		go func() {
			defer close(waited)
			resp, err := http.Post(url+wire.Acquire, "application/json", strings.NewReader(waits))
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode != 410 {
				t.Errorf("the waiter: %s", resp.Status)
			}
		}()
		claimtest.Eventually(t, "somebody waits", func() bool { return len(shown(t, url, "job").Waiters) == 1 })
		call(200, wire.Remove, `{"name":"job","owner":"waiter","reason":"wrong branch"}`)
		<-waited
		call(200, wire.Release, `{"name":"job","owner":"holder"}`)
		call(410, wire.Acquire, waits)
	})
}
