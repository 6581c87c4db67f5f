package served

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// An instance that hangs costs whoever comes by it a moment, where the balancer has another: the command that runs for the
// first time, and the program that holds already.
func TestOneInstanceHangs(t *testing.T) {
	t.Parallel()
	s := serve(t, "redis://"+servers.StartRedis(t).Addr()+"/0")
	d, err := openAddress(s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	locks, err := leasehold.New(d, &leasehold.Options{TTL: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	lease, err := locks.Acquire(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	for _, hung := range s.instances {
		resume := locktest.PauseProcess(t, hung.cmd.Process)
		for i := range 3 { // the balancer gives every other connection to the one that hangs
			run := exec.Command(os.Getenv(binaryEnv), "--store", s.url, "run", "job", "--", "true")
			start := time.Now()
			if out, err := run.CombinedOutput(); err != nil {
				t.Errorf("run %d: %v after %v: %s", i, err, time.Since(start), out)
			}
		}
		if _, err := locks.TryAcquire(t.Context(), hung.addr()); err != nil {
			t.Errorf("a program that holds already: %v", err)
		}
		resume()
	}
	if lease.Context().Err() != nil {
		t.Errorf("the lease was lost: %v", context.Cause(lease.Context()))
	}
}
