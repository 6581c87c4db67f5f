package zklock_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// TestRecalls shares one server among tests of Request.Wanted that cut only their own links. The suite has more.
func TestRecalls(t *testing.T) {
	t.Parallel()
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{Config: []string{longSessions}})
	atOnce(t, 16, on(z, map[string]func(*testing.T, *servers.ZooKeeper){
		"OnlyThoseWhoAskPay":         onlyThoseWhoAskPay,
		"CrowdIsListedSeldom":        crowdIsListedSeldom,
		"QueuedWhileTheHolderIsAway": queuedWhileTheHolderIsAway,
		"WaiterDies":                 recallerDies,
		"SessionEnds":                sessionEndsWhileWanted,
		"StoppedHolder":              stoppedHolderIsWanted,
		"StoppedForLong":             holderStoppedForLong,
		"SleptForLong":               holderSleptForLong,
		"ListIsLost":                 lookWithoutAnAnswer,
	}))
}

// A recall counts calls of Request.Wanted.
type recall struct{ calls atomic.Int64 }

// claim is a claim on name that asks for recalls.
func (r *recall) claim(t testing.TB, d driver.Driver, name string) driver.Claim {
	t.Helper()
	c, err := d.Claim(driver.Request{
		Resource: name, Owner: fmt.Sprint(t.Name(), "/", time.Now().UnixNano()), TTL: d.Features().SessionTTL, Queue: true,
		Wanted: func() { r.calls.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// comes waits for a call, and keeps the places of waiters meanwhile.
func (r *recall) comes(t testing.TB, why string, waiters ...driver.Claim) {
	t.Helper()
	claimtest.Eventually(t, "Wanted called: "+why, func() bool {
		if r.calls.Swap(0) > 0 {
			return true
		}
		for _, c := range waiters {
			_, _ = c.Try(t.Context())
		}
		return false
	})
}

// leaves gives up the place of a waiter. On a machine that is too busy to try it in time the place has ended.
func leaves(t testing.TB, waiter driver.Claim) {
	t.Helper()
	if err := waiter.Release(t.Context(), driver.End{}); err != nil && !errors.Is(err, driver.ErrLost) {
		t.Fatalf("Release of a waiter: %v", err)
	}
}

// renewed is a renewal that must be. It has time for the end of a connection.
func renewed(t testing.TB, d driver.Driver, c driver.Claim) {
	t.Helper()
	if _, err := c.Renew(t.Context(), d.Features().SessionTTL); err != nil {
		t.Fatalf("Renew: %v", err)
	}
}

// traffic counts the frames of a driver's connections, but for pings and greetings.
type traffic struct {
	mu     sync.Mutex
	asked  map[int32]int32 // guarded by mu; kinds of requests without an answer, by number
	sent   int             // guarded by mu; requests
	events int             // guarded by mu; what the server has sent by itself
	lists  int             // guarded by mu; answers that list children
	listed int             // guarded by mu; children in them
}

func (tr *traffic) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, max(timeout, time.Minute))
	if err != nil {
		return nil, err
	}
	return &counted{Conn: conn, traffic: tr}, nil
}

// counts are sent, events, lists and listed.
func (tr *traffic) counts() (sent, events, lists, listed int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.sent, tr.events, tr.lists, tr.listed
}

type counted struct {
	net.Conn
	traffic      *traffic
	in           []byte
	greets, read bool // each side's greeting has passed
}

const kindOfList, kindOfPing, numberOfEvents = 12, 11, -1

func (c *counted) Write(b []byte) (int, error) {
	c.traffic.mu.Lock()
	if kind := int32(binary.BigEndian.Uint32(b[8:])); c.greets && kind != kindOfPing {
		c.traffic.sent++
		c.traffic.asked[int32(binary.BigEndian.Uint32(b[4:]))] = kind
	}
	c.greets = true
	c.traffic.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.traffic.mu.Lock()
	defer c.traffic.mu.Unlock()
	for c.in = append(c.in, b[:n]...); len(c.in) >= 4; {
		end := 4 + int(binary.BigEndian.Uint32(c.in))
		if len(c.in) < end {
			break
		}
		if c.read {
			c.traffic.reply(c.in[4:end])
		}
		c.in, c.read = c.in[end:], true
	}
	return n, err
}

// reply requires tr.mu.
func (tr *traffic) reply(b []byte) {
	number := int32(binary.BigEndian.Uint32(b))
	if number == numberOfEvents {
		tr.events++
		return
	}
	if tr.asked[number] == kindOfList && len(b) > 20 {
		tr.lists++
		tr.listed += int(binary.BigEndian.Uint32(b[16:]))
	}
	delete(tr.asked, number)
}

// onlyThoseWhoAskPay: others queue for a lease and leave, or only try. Unless its holder has asked for recalls, its connection
// carries nothing of that. The answer to a renewal comes behind all earlier events, so none is on its way afterwards.
func onlyThoseWhoAskPay(t *testing.T, z *servers.ZooKeeper) {
	for _, asks := range []bool{false, true} {
		tr := &traffic{asked: make(map[int32]int32)}
		d, others := driverOn(t, &zklock.Options{SessionTimeout: time.Minute, Dial: tr.dial}, z.Addr()), driverOn(t, nil, z.Addr())
		name := fmt.Sprint("who-asks-", asks)
		holder := claimOn(t, d, name)
		var told recall
		if asks {
			holder = told.claim(t, d, name)
		}
		granted(t, holder)
		renewed(t, d, holder)
		sent, events, _, _ := tr.counts()
		for range 3 {
			waiter := claimOn(t, others, name)
			refused(t, waiter)
			leaves(t, waiter)
			passing := claimtest.New(t, others, driver.Request{Resource: name, Owner: "passing", TTL: others.Features().SessionTTL})
			refused(t, passing)
		}
		renewed(t, d, holder)
		after, eventsAfter, _, _ := tr.counts()
		sent, events = after-sent, eventsAfter-events
		if !asks && (sent != 1 || events != 0) {
			t.Errorf("%d requests and %d events for a renewal; want one and none", sent, events)
		}
		if asks && events == 0 {
			t.Error("no event for a holder that asks, so that this test shows nothing")
		}
		claimtest.Released(t, holder)
	}
}

// crowdIsListedSeldom: a thousand queue one after the other. The holder lists at most twenty of them per millisecond, and is
// notified of the last one.
func crowdIsListedSeldom(t *testing.T, z *servers.ZooKeeper) {
	const waiters, perMillisecond = 1000, 20
	tr := &traffic{asked: make(map[int32]int32)}
	d, others := lastingOn(t, &zklock.Options{Dial: tr.dial}, z.Addr()), lastingOn(t, nil, z.Addr())
	var told recall
	holder := told.claim(t, d, "many")
	granted(t, holder)
	start := time.Now()
	for range waiters { // each alone, so that each may be looked for
		refused(t, claimOn(t, others, "many"))
	}
	_, _, lists, listed := tr.counts()
	lasted := time.Since(start)
	t.Logf("%d lists of %d children while %d came in %v", lists, listed, waiters, lasted)
	if most := perMillisecond*int(lasted.Milliseconds()) + 2*waiters; listed > most {
		t.Errorf("%d children were listed in %v; want no more than %d", listed, lasted, most)
	}
	told.comes(t, "a thousand have come")
	claimtest.Eventually(t, "no more calls", func() bool { time.Sleep(100 * time.Millisecond); return told.calls.Swap(0) == 0 })
	refused(t, claimOn(t, others, "many"))
	told.comes(t, "one more has come")
	claimtest.Released(t, holder)
}

// queuedWhileTheHolderIsAway: a waiter comes while the holder's link is cut, and another after that. Nothing is renewed.
func queuedWhileTheHolderIsAway(t *testing.T, z *servers.ZooKeeper) {
	p := servers.StartProxy(t, z.Addr())
	d, others := driverOn(t, &zklock.Options{SessionTimeout: time.Minute}, p.Addr()), driverOn(t, nil, z.Addr())
	var told recall
	holder := told.claim(t, d, "away")
	granted(t, holder)
	renewed(t, d, holder)
	for range 3 {
		p.Dark()
		refused(t, claimOn(t, others, "away"))
		p.Reset()
		p.Pass()
		told.comes(t, "a waiter has come while the link was cut")
		refused(t, claimOn(t, others, "away"))
		told.comes(t, "a waiter has come afterwards")
	}
	claimtest.Released(t, holder)
}

// recallerDies: its place ends with its session. Renewals tell of it until then, and not any more.
func recallerDies(t *testing.T, z *servers.ZooKeeper) {
	p := servers.StartProxy(t, z.Addr())
	d, others := driverOn(t, &zklock.Options{SessionTimeout: time.Minute}, z.Addr()), driverOn(t, &zklock.Options{SessionTimeout: session}, p.Addr())
	var told recall
	holder := told.claim(t, d, "dies")
	granted(t, holder)
	refused(t, claimOn(t, others, "dies"))
	told.comes(t, "a waiter has come")
	p.Dark()
	renewed(t, d, holder)
	told.comes(t, "a renewal while the place is there")
	conn := client(t, z.Addr())
	claimtest.Eventually(t, "the end of the place", func() bool {
		nodes, _, err := conn.Children(zklock.DefaultPrefix + "/dies")
		return err == nil && len(nodes) == 1
	})
	renewed(t, d, holder)
	claimtest.Eventually(t, "calls that were under way", func() bool { time.Sleep(100 * time.Millisecond); return told.calls.Swap(0) == 0 })
	renewed(t, d, holder)
	time.Sleep(500 * time.Millisecond) // for calls that should not come
	if n := told.calls.Load(); n > 0 {
		t.Errorf("told %d times of a waiter that is gone", n)
	}
	claimtest.Released(t, holder)
}

// sessionEndsWhileWanted: the lease is lost, and recalls end with it. When the claim is granted again they begin again.
func sessionEndsWhileWanted(t *testing.T, z *servers.ZooKeeper) {
	const session = 12 * time.Second // a busy machine tells of the waiter within it
	p := servers.StartProxy(t, z.Addr())
	d, others := driverOn(t, &zklock.Options{SessionTimeout: session}, p.Addr()), driverOn(t, nil, z.Addr())
	var told recall
	holder, waiter := told.claim(t, d, "ends"), claimOn(t, others, "ends")
	granted(t, holder)
	refused(t, waiter)
	told.comes(t, "a waiter has come")
	p.Dark()
	claimtest.Eventually(t, "the waiter's grant", func() bool { _, err := waiter.Try(t.Context()); return err == nil })
	told.calls.Store(0)
	behind := claimOn(t, others, "ends")
	refused(t, behind)
	p.Pass()
	claimtest.Eventually(t, "a place in the new session", func() bool {
		_, err := holder.Try(t.Context())
		if err == nil {
			t.Fatal("granted while another holds")
		}
		return errors.Is(err, driver.ErrBusy)
	})
	refused(t, behind)
	if n := told.calls.Load(); n > 0 {
		t.Errorf("told %d times, of those who wait for the next holder", n)
	}
	leaves(t, waiter)
	claimtest.Released(t, behind)
	claimtest.Eventually(t, "the grant", func() bool { _, err := holder.Try(t.Context()); return err == nil })
	refused(t, waiter)
	told.comes(t, "a waiter has come in the new session")
	claimtest.Released(t, holder)
}

// A stoppable is a process of its own that holds a lock, or waits, and what it says.
type stoppable struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
}

func startHolder(t *testing.T, z *servers.ZooKeeper, session time.Duration, name string) *stoppable {
	t.Helper()
	return start(t, "holder", "granted", z.Addr(), session.String(), name)
}

// start runs a program of testdata, which begins by saying first.
func start(t *testing.T, program, first string, args ...string) *stoppable {
	t.Helper()
	cmd := exec.Command(crowd.Build(t, "./testdata/"+program), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &stoppable{t, cmd, make(chan string, 100)}
	t.Cleanup(p.end)
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	p.says(first)
	return p
}

func (p *stoppable) end() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
}

func (p *stoppable) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *stoppable) says(prefix string) {
	p.t.Helper()
	if line := p.line(prefix); !strings.HasPrefix(line, prefix) {
		p.t.Fatalf("it says %q; want %s", line, prefix)
	}
}

// line is what it says next.
func (p *stoppable) line(want string) string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatalf("it has ended; want %s", want)
		}
		return line
	case <-time.After(time.Minute):
		p.t.Fatalf("it says nothing; want %s", want)
	}
	return ""
}

// stoppedHolderIsWanted: a waiter comes while the holder's process is stopped.
func stoppedHolderIsWanted(t *testing.T, z *servers.ZooKeeper) {
	holder := startHolder(t, z, time.Minute, "stopped")
	others := driverOn(t, &zklock.Options{SessionTimeout: time.Minute}, z.Addr())
	for range 3 {
		holder.signal(syscall.SIGSTOP)
		waiter := claimOn(t, others, "stopped")
		refused(t, waiter)
		holder.signal(syscall.SIGCONT)
		holder.says("wanted")
		leaves(t, waiter)
	}
}

// holderStoppedForLong learns that it has lost its lease, and nothing of those who wait for the next holder.
func holderStoppedForLong(t *testing.T, z *servers.ZooKeeper) {
	holder := startHolder(t, z, session, "stopped-for-long")
	others := driverOn(t, nil, z.Addr())
	holder.signal(syscall.SIGSTOP)
	next, behind := claimOn(t, others, "stopped-for-long"), claimOn(t, others, "stopped-for-long")
	refused(t, next)
	claimtest.Eventually(t, "the next grant", func() bool { _, err := next.Try(t.Context()); return err == nil })
	refused(t, behind)
	holder.signal(syscall.SIGCONT)
	holder.says("lost")
	claimtest.Released(t, behind)
	claimtest.Released(t, next)
	select {
	case line := <-holder.lines:
		t.Errorf("the holder says %q after the end of its lease", line)
	case <-time.After(500 * time.Millisecond):
	}
}

// holderSleptForLong: the event of a waiter arrives when the lease is over.
func holderSleptForLong(t *testing.T, z *servers.ZooKeeper) {
	p, clock, tr := servers.StartProxy(t, z.Addr()), new(boottime.Clock), &traffic{asked: make(map[int32]int32)}
	d, others := driverOn(t, &zklock.Options{SessionTimeout: time.Minute, Dial: tr.dial}, p.Addr()), driverOn(t, nil, z.Addr())
	zklock.SleepBy(d, clock)
	var told recall
	holder := told.claim(t, d, "slept-for-long")
	granted(t, holder)
	claimtest.Eventually(t, "the list of the grant", func() bool { _, _, lists, _ := tr.counts(); return lists == 2 })
	p.Dark()
	refused(t, claimOn(t, others, "slept-for-long"))
	clock.Sleep(d.Features().SessionTTL)
	p.Pass()
	claimtest.Eventually(t, "the list with the waiter", func() bool { _, _, lists, _ := tr.counts(); return lists == 3 })
	time.Sleep(500 * time.Millisecond) // for calls that should not come
	if n := told.calls.Load(); n > 0 {
		t.Errorf("told %d times, when the lease was over", n)
	}
}

// lookWithoutAnAnswer: the holder's connection ends between the list and its answer. Nothing is renewed.
func lookWithoutAnAnswer(t *testing.T, z *servers.ZooKeeper) {
	p, tr := servers.StartProxy(t, z.Addr()), &traffic{asked: make(map[int32]int32)}
	d, others := driverOn(t, &zklock.Options{SessionTimeout: time.Minute, Dial: tr.dial}, p.Addr()), driverOn(t, nil, z.Addr())
	var told recall
	holder := told.claim(t, d, "list-is-lost")
	granted(t, holder)
	renewed(t, d, holder)
	p.Delay(time.Second)
	sent, _, _, _ := tr.counts()
	waiter := claimOn(t, others, "list-is-lost")
	refused(t, waiter)
	claimtest.Eventually(t, "a list that is asked for", func() bool { now, _, _, _ := tr.counts(); return now > sent })
	p.Delay(0)
	p.Reset()
	told.comes(t, "the first list had no answer", waiter)
	claimtest.Released(t, holder)
}

// The server that has the watch is killed. The holder is told of a waiter that comes meanwhile, and of the next.
func TestRecallByAnotherServer(t *testing.T) {
	t.Parallel()
	all := servers.StartZooKeepers(t, 3, servers.ZooKeeperOptions{Config: append(slices.Clone(steady.Config), longSessions)})
	var at atomic.Pointer[string]
	d := lastingOn(t, &zklock.Options{Dial: func(network, address string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, address, timeout)
		if err == nil {
			at.Store(&address)
		}
		return conn, err
	}}, addresses(all)...)
	others := lastingOn(t, nil, addresses(all)...)
	var told recall
	holder := told.claim(t, d, "moved")
	granted(t, holder)
	renewed(t, d, holder)
	for range 2 {
		ours := all[slices.IndexFunc(all, func(z *servers.ZooKeeper) bool { return z.Addr() == *at.Load() })]
		ours.Kill()
		waiter := claimOn(t, others, "moved")
		claimtest.Eventually(t, "a place", func() bool { _, err := waiter.Try(t.Context()); return errors.Is(err, driver.ErrBusy) })
		told.comes(t, "a waiter has come while the server was killed", waiter)
		next := claimOn(t, others, "moved")
		refused(t, next)
		told.comes(t, "a waiter has come afterwards", next)
		leaves(t, waiter)
		ours.Start(t)
	}
	claimtest.Released(t, holder)
}
