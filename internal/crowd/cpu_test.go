package crowd

import (
	"os"
	"syscall"
	"testing"
	"time"
)

func TestProcessCPUOfThisProcess(t *testing.T) {
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
	}
	var u syscall.Rusage
	got, err := ProcessCPU(t, os.Getpid()), syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	if err != nil {
		t.Fatal(err)
	}
	want := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	if off := want - got; off < -20*time.Millisecond || off > want/2+20*time.Millisecond {
		t.Errorf("%v, and getrusage says %v", got, want)
	}
	if _, _, err := processCPU(1 << 30); err == nil {
		t.Error("a process that cannot be has an answer")
	}
}
