package crowd

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/internal/proxy"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

const (
	stormTTL       = 2 * time.Second
	stormProcesses = 6
	loops          = 3 // of each process, as its command has them
	// stormPatience is how long after the last fault somebody may wait, beyond the TTL of what the dead have left. It takes
	// a second or two where nothing else runs.
	stormPatience = 30 * time.Second
)

// Processes keep what they released, and take it from each other, while they are killed and stopped
// and their connections are cut.
func TestStorm(t *testing.T) {
	servers.Long(t, "half a minute of kills on each engine")
	binary := crowd.Build(t, "./testdata/holders")
	for name, start := range map[string]func(t *testing.T) (url string){
		"redis":    func(t *testing.T) string { return "redis://" + servers.StartRedis(t).Addr() + "/0" },
		"postgres": func(t *testing.T) string { return servers.StartPostgres(t, "max_connections=200").URL() },
		"etcd":     func(t *testing.T) string { return "etcd://" + servers.StartEtcd(t, servers.EtcdCurrent).Addr() },
	} {
		t.Run(name, func(t *testing.T) {
			s := &storm{t: t, binary: binary, url: start(t)}
			var rages sync.WaitGroup
			for range stormProcesses {
				p, err := s.begin()
				if err != nil {
					t.Fatal(err)
				}
				s.all = append(s.all, p)
			}
			for i := range s.all {
				rages.Go(func() { s.rage(i, time.Now().Add(20*time.Second)) })
			}
			rages.Wait()
			s.calm()
			s.check()
		})
	}
}

// A storm is processes that want the same names.
type storm struct {
	t           *testing.T
	binary, url string
	all         []*process // those that run
	history     locktest.History

	mu          sync.Mutex
	kept, turns int            // guarded by mu; leases by hand-over, and all
	failed      map[string]int // guarded by mu
}

// A process has a link of its own to the store.
type process struct {
	cmd   *exec.Cmd
	link  *proxy.Proxy
	ended chan struct{} // closed when all it said is here

	mu      sync.Mutex
	holds   [loops]*event // guarded by mu; what a loop was granted, and has not given up
	done    []belief      // guarded by mu
	granted [loops]int64  // guarded by mu; when it was last
	waits   []wait        // guarded by mu
	errs    []string      // guarded by mu
}

// An event is what a process says; see testdata/holders.
type event struct {
	Loop                          int
	Name                          string
	Token                         uint64
	Called, From, Until, Deadline int64
	Err                           string
}

// A belief is what was held until an instant.
type belief struct {
	event
	until int64
}

// A wait is how long a call took, and when it ended.
type wait struct {
	at   int64
	took time.Duration
}

// begin starts a process.
func (s *storm) begin() (*process, error) {
	u, err := url.Parse(s.url)
	if err != nil {
		return nil, err
	}
	link, err := proxy.Listen(u.Host)
	if err != nil {
		return nil, err
	}
	s.t.Cleanup(link.Close)
	u.Host = link.Addr()
	p := &process{cmd: exec.Command(s.binary, u.String(), fmt.Sprint(stormTTL.Milliseconds())), link: link, ended: make(chan struct{})}
	p.cmd.Stderr = os.Stderr
	if _, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	s.t.Cleanup(func() { s.end(p) })
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var e event
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				p.hear(e)
			}
		}
	}()
	return p, nil
}

// hear takes in an event.
func (p *process) hear(e event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case e.Err != "":
		p.errs = append(p.errs, e.Err)
	case e.Token != 0:
		p.holds[e.Loop], p.granted[e.Loop] = &e, e.From
		p.waits = append(p.waits, wait{e.From, time.Duration(e.From - e.Called)})
	default:
		p.done = append(p.done, belief{*p.holds[e.Loop], e.Until})
		p.holds[e.Loop] = nil
	}
}

func (p *process) isHolding() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holds != [loops]*event{}
}

// end kills a process. What it holds it believes in until then.
func (s *storm) end(p *process) {
	at := time.Now().UnixNano()
	select {
	case <-p.ended:
		return
	default:
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
	_ = p.cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, e := range p.holds {
		if e != nil {
			p.done = append(p.done, belief{*e, min(at, e.Deadline)})
			p.holds[i] = nil
		}
	}
}

// rage harms one of the processes, and those that come after it, until a time.
func (s *storm) rage(i int, until time.Time) {
	for time.Now().Before(until) {
		time.Sleep(rand.N(2 * time.Second))
		s.harm(i)
	}
}

func (s *storm) harm(i int) {
	p := s.all[i]
	switch rand.N(4) {
	case 0:
		s.end(p)
		s.add(p)
		if p, err := s.begin(); err != nil {
			s.t.Error(err)
		} else {
			s.all[i] = p
		}
	case 1: // while it holds, if it does soon
		for end := time.Now().Add(time.Second); !p.isHolding() && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		s.signal(p, syscall.SIGSTOP)
		time.Sleep(rand.N(2 * stormTTL))
		s.signal(p, syscall.SIGCONT)
	case 2:
		p.link.Reset()
	default:
		p.link.Dark()
		time.Sleep(rand.N(2 * time.Second))
		p.link.Pass()
	}
}

func (s *storm) signal(p *process, signal syscall.Signal) {
	s.t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		s.t.Error(err)
	}
}

// calm waits until every loop has had a turn that began after the last fault.
func (s *storm) calm() {
	s.t.Helper()
	since := time.Now()
	for !s.served(since.UnixNano()) {
		if time.Since(since) > stormTTL+stormPatience {
			s.t.Fatalf("somebody has waited for %v though nothing happens", time.Since(since))
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.t.Logf("all were served %v after the last fault", time.Since(since))
	time.Sleep(5 * time.Second) // of calm, for the longest wait
	longest := time.Duration(0)
	for _, p := range s.all {
		p.mu.Lock()
		for _, w := range p.waits {
			if w.at-int64(w.took) > since.Add(stormTTL).UnixNano() {
				longest = max(longest, w.took)
			}
		}
		p.mu.Unlock()
	}
	s.t.Logf("longest wait since: %v", longest)
	if longest > stormTTL+stormPatience {
		s.t.Errorf("somebody waited for %v though nothing happens", longest)
	}
}

func (s *storm) served(since int64) bool {
	for _, p := range s.all {
		p.mu.Lock()
		granted := p.granted
		p.mu.Unlock()
		for _, at := range granted {
			if at < since {
				return false
			}
		}
	}
	return true
}

// add adds what a process that has ended believed.
func (s *storm) add(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.done {
		s.turns++
		if b.Token%1024 != 0 {
			s.kept++
		}
		if b.Deadline < b.From { // it was stopped before it knew of it
			continue
		}
		s.history.Add(locktest.Belief{
			Resource: b.Name, Owner: fmt.Sprint("process ", p.cmd.Process.Pid), Token: b.Token,
			From: time.Unix(0, b.From), Until: time.Unix(0, b.until),
		})
	}
	if s.failed == nil {
		s.failed = make(map[string]int)
	}
	for _, err := range p.errs {
		s.failed[err]++
	}
}

// check has all end, and checks what they believed.
func (s *storm) check() {
	for _, p := range s.all {
		s.end(p)
		s.add(p)
	}
	if err := s.history.Check(); err != nil {
		s.t.Error(err)
	}
	s.t.Logf("%d turns, %d of them without a grant", s.turns, s.kept)
	for err, n := range s.failed {
		s.t.Logf("%d times: %s", n, err)
	}
	if s.kept == 0 {
		s.t.Error("nothing was kept")
	}
}
