package servers

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// tellEnv is set in a process that prints its clocks for each line that it reads.
const tellEnv = "LEASEHOLD_TEST_TELLS_CLOCKS"

var began = time.Now()

func TestMain(m *testing.M) {
	if os.Getenv(tellEnv) == "" {
		os.Exit(m.Run())
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		now := time.Now()
		fmt.Println(now.UnixNano(), int64(now.Sub(began)))
	}
}

// From their next reading on, a process in Go and one in Python see the wall clock that a test
// moves. Their monotonic clocks stay right.
func TestProcessesGoByTheirClock(t *testing.T) {
	t.Parallel()
	const python = `
import sys, time
for line in sys.stdin: print(time.time_ns(), time.monotonic_ns(), flush=True)`
	for name, cmd := range map[string]*exec.Cmd{
		"go":     exec.Command(os.Args[0]),
		"python": exec.Command("/usr/bin/python3", "-c", python),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			goesByItsClock(t, cmd)
		})
	}
}

func goesByItsClock(t *testing.T, cmd *exec.Cmd) {
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), tellEnv+"=1")
	clock, ended, err := StartWithClock(cmd)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("no other system's code is known")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); <-ended; clock.Close() }()
	said := bufio.NewReader(out)
	tell := func() (wall, mono time.Duration) {
		fmt.Fprintln(in)
		line, err := said.ReadString('\n')
		if err == nil {
			_, err = fmt.Sscan(line, &wall, &mono)
		}
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return wall, mono
	}
	_, first := tell()
	const slow = 30 * time.Second // of this machine
	for n := range 200 {
		offset := time.Duration(n%7-3) * 5 * time.Hour
		if err := clock.Set(offset); err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		wall, mono := tell()
		if off := time.Duration(before.UnixNano()) + offset - wall; off > 0 || off < -slow {
			t.Errorf("set to %v, off by %v", offset, off)
		}
		if mono < first || mono-first > slow+time.Second {
			t.Errorf("the monotonic clock went from %v to %v", first, mono)
		}
		first = mono
	}
}
