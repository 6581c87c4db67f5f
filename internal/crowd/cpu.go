package crowd

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// ProcessCPU returns the processor time of the process so far, including its children that have
// ended, in steps of 10 ms.
func ProcessCPU(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	d, _, err := processCPU(pid)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// Share measures the share of a core that the process uses, as the least of three periods of that
// length. A busy machine makes the same work dearer, but a process that spins does so in each
// period. A share of at most enough ends the measurement.
func (m *Member) Share(lasts time.Duration, enough float64) float64 {
	m.fleet.t.Helper()
	share := m.share(lasts)
	for i := 0; i < 2 && share > enough; i++ {
		share = min(share, m.share(lasts))
	}
	return share
}

func (m *Member) share(lasts time.Duration) float64 {
	t, pid := m.fleet.t, m.cmd.Process.Pid
	t.Helper()
	before, start := ProcessCPU(t, pid), time.Now()
	time.Sleep(lasts)
	used, lasted := ProcessCPU(t, pid)-before, time.Since(start)
	t.Logf("%v of CPU in %v", used, lasted)
	return used.Seconds() / lasted.Seconds()
}

// FamilyCPU returns the processor time of the process and its children so far, including those that
// have ended.
func FamilyCPU(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	sum := ProcessCPU(tb, pid)
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		tb.Fatal(err)
	}
	for _, one := range all {
		child, _ := strconv.Atoi(filepath.Base(one))                             // it is a number
		if used, parent, err := processCPU(child); err == nil && parent == pid { // err: it has ended since
			sum += used
		}
	}
	return sum
}

// processCPU reads fields 4 and 14 to 17 of proc(5)'s stat: the parent, and the times of the
// process and of its children that ended. They are in hundredths of a second on every platform that
// Go supports. The second field may contain blanks and brackets.
func processCPU(pid int) (used time.Duration, parent int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 15 {
		return 0, 0, fmt.Errorf("stat of process %d: %q", pid, text)
	}
	var hundredths int
	for _, field := range fields[11:15] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, 0, err
		}
		hundredths += n
	}
	parent, err = strconv.Atoi(fields[1])
	return time.Duration(hundredths) * 10 * time.Millisecond, parent, err
}
