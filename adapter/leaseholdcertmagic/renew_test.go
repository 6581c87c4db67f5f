package leaseholdcertmagic_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdcertmagic"
	"github.com/leasehold-go/leasehold/memory"
)

// A caller that has lost its lease does not make another of the process, which has the lock since,
// lose its own.
func TestTheLockBelongsToTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		locks, err := leasehold.New(server.Connect(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		storage := leaseholdcertmagic.New(nil, locks, "")
		lock := func() {
			if err := storage.Lock(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		}
		renew := func() error { return storage.RenewLockLease(t.Context(), "a", time.Minute) }
		lock()
		server.Flush()
		synctest.Wait()
		lock()
		if err := renew(); err != nil {
			t.Errorf("renewed while another caller holds it: %v", err)
		}
		if err := storage.Unlock(t.Context(), "a"); !errors.Is(err, leasehold.ErrLost) {
			t.Errorf("Unlock by the first: %v, want ErrLost", err)
		}
		if err := renew(); err != nil {
			t.Errorf("renewed by the second: %v", err)
		}
		if err := storage.Unlock(t.Context(), "a"); err != nil {
			t.Errorf("Unlock by the second: %v", err)
		}
		if err := renew(); err == nil {
			t.Error("renewed after all have unlocked")
		}
	})
}
