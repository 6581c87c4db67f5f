package contest

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// ProcessCPU is what the process has used so far, in steps of 10 ms.
func ProcessCPU(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	d, err := processCPU(pid)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// processCPU reads fields 14 and 15 of proc(5)'s stat, which are in hundredths of a second
// on every platform that Go knows. The second field may have blanks and brackets in it.
func processCPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("stat of process %d: %q", pid, text)
	}
	user, err := strconv.ParseInt(string(fields[11]), 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(string(fields[12]), 10, 64)
	if err != nil {
		return 0, err
	}
	return time.Duration(user+system) * 10 * time.Millisecond, nil
}
