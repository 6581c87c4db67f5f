//go:build unix

package quota

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A Fleet is the processes of an order, which share a board.
type Fleet struct {
	t       testing.TB
	board   *board
	members []*member
}

type member struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *said
}

// said keeps the output of a process.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// Start starts this program again for each process of an order. env tells its main function to call
// Work. The processes are killed when the test ends.
func Start(t testing.TB, env string, o Order) *Fleet {
	t.Helper()
	o.Board = filepath.Join(t.TempDir(), "board")
	b, err := openBoard(o)
	if err != nil {
		t.Fatal(err)
	}
	f := &Fleet{t: t, board: b}
	for o.Process = range o.Processes {
		m := &member{cmd: exec.Command(os.Args[0]), out: new(said)}
		m.cmd.Env = append(os.Environ(), env, "GORACE=atexit_sleep_ms=0")
		m.cmd.Stdout, m.cmd.Stderr = m.out, m.out
		if m.in, err = m.cmd.StdinPipe(); err == nil {
			err = m.cmd.Start()
		}
		if err == nil {
			t.Cleanup(func() { _ = m.cmd.Process.Kill(); _ = m.cmd.Wait() }) // it may have exited already
			err = json.NewEncoder(m.in).Encode(o)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.members = append(f.members, m)
	}
	return f
}

// A Count is what the board has counted.
type Count struct {
	Done               int64 // turns finished so far
	OverKey, OverTotal int64 // how often a worker was admitted beyond the limit
	PeakKey, PeakTotal int64 // the most workers inside at once
	AtWork             int64
}

// Count reads the board.
func (f *Fleet) Count() Count {
	at := func(i int) int64 { return f.board.all[i].Load() }
	return Count{at(done), at(overKey), at(overTotal), at(peakKey), at(peakTotal), at(total)}
}

// Rate measures how many turns the fleet finishes per second, over d.
func (f *Fleet) Rate(d time.Duration) float64 {
	from, began := f.Count().Done, time.Now()
	time.Sleep(d)
	return float64(f.Count().Done-from) / time.Since(began).Seconds()
}

// Busy waits until n workers are inside.
func (f *Fleet) Busy(n int64) {
	f.t.Helper()
	for end := time.Now().Add(time.Minute); f.Count().AtWork < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatalf("%d are at work, want %d; %s", f.Count().AtWork, n, f.said())
		}
	}
}

// KillHalf kills half of the processes with SIGKILL while some of their workers are inside, and
// removes these from the board. It returns how many were inside, and when the last process had
// gone.
func (f *Fleet) KillHalf() (worked int, gone time.Time) {
	f.t.Helper()
	doomed := f.members[:len(f.members)/2]
	for worked == 0 { // a process that is stopped cannot finish turns before it is killed
		for _, m := range doomed {
			_ = m.cmd.Process.Signal(syscall.SIGSTOP)
			if _, err := syscall.Wait4(m.cmd.Process.Pid, nil, syscall.WUNTRACED, nil); err != nil {
				f.t.Fatal(err)
			}
		}
		for i := range doomed {
			f.workersOf(i, func(w int) {
				if f.board.cell(w).Load() == inside {
					worked++
				}
			})
		}
		if worked == 0 {
			for _, m := range doomed {
				_ = m.cmd.Process.Signal(syscall.SIGCONT)
			}
		}
	}
	worked = 0
	for i, m := range doomed {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait() // it was killed
		f.workersOf(i, func(w int) {
			if f.board.reap(w) {
				worked++
			}
		})
	}
	return worked, time.Now()
}

func (f *Fleet) workersOf(process int, do func(worker int)) {
	o := f.board.Order
	o.Process = process
	for w := range o.workers {
		do(w)
	}
}

// Killed reports whether a lease's note names a process that KillHalf kills.
func (f *Fleet) Killed(note string) bool {
	process, err := strconv.Atoi(note)
	return err == nil && process < len(f.members)/2
}

// End lets the remaining processes finish their turns. It fails the test if they have reported
// errors.
func (f *Fleet) End() {
	f.t.Helper()
	for _, m := range f.members {
		m.in.Close()
	}
	for _, m := range f.members {
		_ = m.cmd.Wait() // half of them were killed
	}
	if text := f.said(); text != "" {
		f.t.Error(text)
	}
}

func (f *Fleet) said() (all string) {
	for _, m := range f.members {
		all += m.out.String()
	}
	return all
}
