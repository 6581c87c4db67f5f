// Package crowd measures the cost of waiters. They run in a fleet of processes of their own, without
// a race detector and with nothing else in them.
package crowd

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// Name is the lock that a whole fleet waits for.
const Name = "wanted"

// A Fleet is many processes whose waiters want one name. Each process has a driver, and each waiter
// a Locker.
type Fleet struct {
	t       testing.TB
	Members []*Member

	mu    sync.Mutex
	turns []Turn        // guarded by mu
	grown chan struct{} // guarded by mu; closed at the next turn
}

// A Member is one process of a fleet.
type Member struct {
	Waiters int

	fleet  *Fleet
	cmd    *exec.Cmd
	in     io.Writer
	queued chan struct{} // closed when all of its waiters have a place
	ended  chan struct{}

	mu     sync.Mutex
	killed bool // guarded by mu
}

// A Turn is the result of one waiter. Instants are nanoseconds of this machine's clock.
type Turn struct {
	Member, Waiter int
	Began          int64  // before its call
	Queued         int64  // at the first refusal; 0: never
	Held, Released int64  // after the grant, and before the release
	Token          uint64 // of the lease
	Err            string // why there was none
}

// Build builds the command of a package, such as "./testdata/waiters", without a race detector.
func Build(t testing.TB, pkg string) (binary string) {
	t.Helper()
	binary = filepath.Join(t.TempDir(), "waiters")
	if err := servers.Program(binary, pkg); err != nil {
		t.Fatal(err)
	}
	return binary
}

// StartFleet starts processes of a command that calls Work, and sends them an order. They are
// killed when the test ends. The waiters are distributed among them.
func StartFleet(t testing.TB, binary string, o Order, processes, waiters int) *Fleet {
	t.Helper()
	f := &Fleet{t: t, grown: make(chan struct{})}
	for i := range processes {
		m := &Member{
			Waiters: waiters/processes + min(1, max(0, waiters%processes-i)), fleet: f,
			queued: make(chan struct{}), ended: make(chan struct{}),
		}
		m.cmd = exec.Command(binary)
		m.cmd.Stderr = os.Stderr
		in, err := m.cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := m.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Kill(); <-m.ended })
		m.in = in
		f.Members = append(f.Members, m)
		opened := make(chan struct{})
		go m.listen(i, out, opened)
		o.Waiters = m.Waiters
		m.tell(o)
		t.Cleanup(func() { in.Close() })
		select {
		case <-opened:
		case <-m.ended:
			t.Fatal("a process of the crowd has ended at once")
		}
	}
	return f
}

// Begin makes all waiters begin to wait at once.
func (f *Fleet) Begin() {
	for _, m := range f.Members {
		m.tell(Order{})
	}
}

// Queued returns when all waiters have been refused. If that takes longer than most, it fails the
// test.
func (f *Fleet) Queued(most time.Duration) {
	f.t.Helper()
	late := time.After(most)
	for i, m := range f.Members {
		select {
		case <-m.queued:
		case <-m.ended:
			f.t.Fatalf("process %d of the crowd has ended", i)
		case <-late:
			f.t.Fatalf("process %d of the crowd: not all of its waiters have been refused after %v", i, most)
		}
	}
}

// Turns waits for that many turns and returns them in order. After most, it returns those there
// are, and an error.
func (f *Fleet) Turns(many int, most time.Duration) ([]Turn, error) {
	return f.TurnsOf(nil, many, most)
}

// TurnsOf is like Turns, for one member, or for all if member is nil.
func (f *Fleet) TurnsOf(member *Member, many int, most time.Duration) ([]Turn, error) {
	late := time.After(most)
	for {
		f.mu.Lock()
		turns, grown := slices.Clone(f.turns), f.grown
		f.mu.Unlock()
		turns = slices.DeleteFunc(turns, func(t Turn) bool { return member != nil && f.Members[t.Member] != member })
		slices.SortFunc(turns, func(a, b Turn) int { return cmp.Compare(a.Held, b.Held) })
		if len(turns) >= many {
			return turns, nil
		}
		select {
		case <-grown:
		case <-late:
			return turns, fmt.Errorf("%d of %d were served in %v", len(turns), many, most)
		}
	}
}

// Kill kills all processes, as kill -9 does.
func (f *Fleet) Kill() {
	for _, m := range f.Members {
		m.Kill()
	}
}

// CPU returns the processor time of all processes so far.
func (f *Fleet) CPU() (sum time.Duration) {
	f.t.Helper()
	for _, m := range f.Members {
		sum += ProcessCPU(f.t, m.cmd.Process.Pid)
	}
	return sum
}

// Kill kills the process, as kill -9 does.
func (m *Member) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.killed = true
	_ = m.cmd.Process.Kill() // it may have ended
}

func (m *Member) tell(o Order) {
	m.fleet.t.Helper()
	text, _ := json.Marshal(o) // always encodes
	if _, err := fmt.Fprintf(m.in, "%s\n", text); err != nil {
		m.fleet.t.Fatalf("a process of the crowd has ended: %v", err)
	}
}

// listen reads the process's output until it has ended.
func (m *Member) listen(number int, out io.Reader, opened chan<- struct{}) {
	defer close(m.ended)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var said news
		if err := json.Unmarshal(lines.Bytes(), &said); err != nil {
			m.fleet.t.Errorf("a process of the crowd says %q", lines.Text())
			continue
		}
		switch {
		case said.Opened:
			close(opened)
		case said.Queued:
			close(m.queued)
		default:
			said.Turn.Member = number
			m.fleet.add(*said.Turn)
		}
	}
	err := m.cmd.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && !m.killed {
		m.fleet.t.Errorf("process %d of the crowd: %v", number, err)
	}
}

func (f *Fleet) add(turn Turn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turns = append(f.turns, turn)
	close(f.grown)
	f.grown = make(chan struct{})
}

// Faults returns what is wrong with turns, which are all turns of a fleet, in order. Two held at
// once, or a token went back. If grants are fair, no turn may overtake another that had been
// refused before the first one began.
func Faults(turns []Turn, fair bool) (all []string) {
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	var last *Turn
	for i := range turns {
		one := &turns[i]
		switch {
		case one.Err != "":
			say("waiter %d of process %d: %s", one.Waiter, one.Member, one.Err)
			continue
		case last != nil && last.Released > one.Held:
			say("two held at once: for %v", time.Duration(last.Released-one.Held))
		case last != nil && last.Token != 0 && last.Token >= one.Token:
			say("the token %d came after %d", one.Token, last.Token)
		}
		last = one
	}
	for i, passed := len(turns)-1, (*Turn)(nil); fair && i >= 0; i-- {
		one := &turns[i]
		if passed != nil && one.Err == "" && passed.Queued < one.Began {
			say("waiter %d of process %d had waited for %v when one began that was served %v earlier",
				passed.Waiter, passed.Member, time.Duration(one.Began-passed.Queued), time.Duration(passed.Held-one.Held))
		}
		if one.Err == "" && one.Queued != 0 && (passed == nil || one.Queued < passed.Queued) {
			passed = one
		}
	}
	return all
}
