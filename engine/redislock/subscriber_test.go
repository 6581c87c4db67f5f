package redislock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// Claims of one owner on several locks hear by themselves: a message names the owner alone.
func TestListenersOfOneOwner(t *testing.T) {
	t.Parallel()
	d, err := New(noServer(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	lost := make(map[string]error)
	claimed := func(name string) *claim {
		c, err := d.Claim(driver.Request{Resource: name, Owner: "o", TTL: time.Minute, Queue: true, Lost: func(err error) { lost[name] = err }})
		if err != nil {
			t.Fatal(err)
		}
		return c.(*claim)
	}
	a, b := claimed("a"), claimed("b")
	first, second := a.arm(), b.arm()
	d.subscriber.take("w1:o")
	if !isWoken(first.wake) || !isWoken(second.wake) {
		t.Error("not both are woken, whichever was meant")
	}
	first, second = a.arm(), b.arm()
	d.subscriber.take(fmt.Sprintf("g1:o%d 5000 1000 1000", first.number))
	if len(first.granted) != 1 || len(second.granted) > 0 || a.load().grant.fence != 5000 || b.load().phase == held {
		t.Errorf("a grant of one brought it %d, and the other %d", len(first.granted), len(second.granted))
	}
	d.subscriber.take("e1:owhy")
	if len(lost) > 0 {
		t.Errorf("told of an eviction of either: %v", lost)
	}
	b.Forget()
	d.subscriber.take("e1:owhy")
	if !errors.Is(lost["a"], driver.ErrEvicted) || lost["b"] != nil {
		t.Errorf("the eviction of the one that is left was told as %v", lost)
	}
	if n := len(d.subscriber.claims); n > 0 {
		t.Errorf("%d owners are listened for", n)
	}
}

func isWoken(wake <-chan struct{}) bool {
	select {
	case <-wake:
		return true
	default:
		return false
	}
}

// A grant to one that a beat has kept counts from when that beat was sent, less the time until the last Try. By a beat
// whose answer has not come it only wakes: nobody knows when that was sent.
func TestGrantByABeat(t *testing.T) {
	t.Parallel()
	d, err := New(noServer(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	e := d.subscriber
	e.clock = new(boottime.Clock)
	e.running, e.keeping, e.own.hears = true, true, true // without a server
	refuse := func(name string) (*claim, armed) {
		dc, err := d.Claim(driver.Request{Resource: name, Owner: "o", TTL: time.Minute, Queue: true})
		if err != nil {
			t.Fatal(err)
		}
		c := dc.(*claim)
		a := c.arm()
		e.placed(c, false)
		return c, a
	}
	beat := func(c *claim, asked int64, missing ...any) {
		values := []any{asked, "another", missing, []any{int64(0), int64(0), int64(0), int64(0)}}
		e.beaten(e.crowds[c.keys.lock], roll{wait: []string{"o"}}, false, values, e.clock.Now())
	}
	c, a := refuse("kept")
	if e.kept(c) != nil {
		t.Error("it is refused unasked before any beat")
	}
	beat(c, 7000)
	e.clock.Sleep(time.Second)
	if busy := e.kept(c); busy == nil || busy.Wake != a.wake {
		t.Fatalf("kept by a beat, its Try is refused with %+v", busy)
	}
	e.take("g1:o-7000 5000 4000 3500") // since the beat, and from now on
	select {
	case g := <-a.granted:
		if g.TTL < 2900*time.Millisecond || g.TTL > 3*time.Second {
			t.Errorf("4 s since a beat are told as %v since a Try a second later", g.TTL)
		}
	default:
		t.Error("a grant by a beat did not come")
	}
	c.Forget()

	c, a = refuse("unknown")
	beat(c, 7000)
	e.take("g1:o-8000 5000 4000 3500")
	if !isWoken(a.wake) || len(a.granted) > 0 || c.load().phase == held {
		t.Error("a grant counts by a beat that had no answer")
	}
	c.Forget()

	c, a = refuse("missing")
	beat(c, 7000, int64(1))
	if !isWoken(a.wake) || e.kept(c) != nil {
		t.Error("who has lost its place is refused unasked, or not woken")
	}
	c.Forget()

	c, _ = refuse("asleep")
	beat(c, 7000)
	e.clock.Sleep(10 * time.Second) // the beats stood still, and so did the monotonic clock
	if e.kept(c) != nil {
		t.Error("it is refused unasked when the machine has slept")
	}
}

// Who waits no more is remembered until a beat has had its place removed: later beats would keep it for ever.
func TestGoneWaiterIsRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // the clock stands still in between
		client := noServer()
		defer client.Close()
		d := driverOn(t, client, nil)
		e := d.subscriber
		e.clock = new(boottime.Clock)
		e.running, e.keeping = true, true // without a server
		c, err := d.Claim(driver.Request{Resource: "r", Owner: "o", TTL: time.Minute, Queue: true})
		if err != nil {
			t.Fatal(err)
		}
		c.(*claim).arm()
		k := e.crowds[c.(*claim).keys.lock]
		gone := func() int {
			return len(k.roll(e.clock.Now()).gone)
		}
		removed := func() {
			e.beaten(k, roll{gone: []string{"o"}}, false, []any{int64(7000), "", []any{}, []any{}}, e.clock.Now())
		}
		if n := gone(); n != 0 {
			t.Errorf("%d are gone at once", n)
		}
		e.clock.Sleep(placeTTL + time.Second)
		removed() // an attempt may still make another
		e.clock.Sleep(goneTTL)
		if n := gone(); n != 1 {
			t.Errorf("no beat has had it removed in time, and %d are gone", n)
		}
		removed()
		if n := gone(); n != 0 || len(k.waiters) != 0 {
			t.Errorf("a beat has had it removed, and %d of %d are gone", n, len(k.waiters))
		}
		for i := range maxGone + 5 {
			k.waiters[fmt.Sprint(i)] = &waiter{claim: c.(*claim), tried: e.clock.Now()}
		}
		e.clock.Sleep(goneTTL + time.Second)
		gone()
		if n := gone(); n != maxGone {
			t.Errorf("%d are remembered", n)
		}
	})
}

// While no server answers, those who gave up are forgotten after their places have expired.
func TestOutageLeavesNoCrowds(t *testing.T) {
	t.Parallel()
	d := driverOn(t, noServer(), nil)
	e := d.subscriber
	e.clock = new(boottime.Clock)
	e.running, e.keeping = true, true // without a server
	e.due = e.clock.Now().Add(time.Hour)
	for i := range 1000 {
		c, err := d.Claim(driver.Request{Resource: fmt.Sprint(i), Owner: "o", TTL: time.Minute, Queue: true})
		if err != nil {
			t.Fatal(err)
		}
		c.(*claim).arm()
		c.(*claim).Forget()
	}
	e.clock.Sleep(goneTTL + placeTTL + time.Second)
	if e.keepAll() || len(e.crowds) > 0 {
		t.Errorf("%d of 1,000 crowds are left", len(e.crowds))
	}
}

// An outage is what d has of one, while a waiter of another driver stays the first in a queue. The
// server's clock is the test's, and nothing beats for d but the test.
type outage struct {
	clock         *servers.Clock
	d, other      *Driver
	holder, first driver.Claim
}

func newOutage(t *testing.T) *outage {
	t.Helper()
	r, clock := servers.StartRedisWithClock(t)
	o := &outage{clock: clock, d: driverOn(t, redisAt(t, r), nil), other: driverOn(t, redisAt(t, r), nil)}
	o.d.subscriber.clock = new(boottime.Clock)
	o.d.subscriber.keeping, o.d.subscriber.due = true, o.d.subscriber.clock.Now().Add(time.Hour)
	o.holder = longClaim(t, o.other, "n")
	if _, err := o.holder.Try(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.first = o.queue(t, o.other, "first")
	return o
}

// queue has an owner wait.
func (o *outage) queue(t *testing.T, d *Driver, owner string) driver.Claim {
	t.Helper()
	c, err := d.Claim(driver.Request{Resource: "n", Owner: owner, TTL: time.Minute, Queue: true})
	if err != nil {
		t.Fatal(err)
	}
	o.refused(t, c)
	return c
}

func (o *outage) refused(t *testing.T, c driver.Claim) {
	t.Helper()
	if _, err := c.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
		t.Fatalf("Try: %v; want a refusal", err)
	}
}

// lasts keeps d's beats from the server until d's places have expired. The claims in ask call Try
// meanwhile, and keep their places.
func (o *outage) lasts(t *testing.T, ask ...driver.Claim) {
	t.Helper()
	for at := range 3 {
		o.clock.Set(time.Duration(at+1) * placeTTL / 2)
		for _, c := range append(ask, o.first) {
			o.refused(t, c)
		}
	}
}

// beat returns who waits after a beat of d.
func (o *outage) beat(t *testing.T) (owners []string) {
	t.Helper()
	e := o.d.subscriber
	e.keepAll()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		e.mu.Lock()
		k := e.crowds["lock:n"]
		answered := k != nil && !k.beating && k.heard > 0
		e.mu.Unlock()
		if answered {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a beat has no answer")
		}
	}
	st, err := o.other.Inspect(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range st.Waiters {
		owners = append(owners, w.Owner.Reveal())
	}
	return owners
}

// The places of those who gave up in an outage are not revived by the next beat of their driver, which
// has forgotten them. Each would be granted the lock, of which nobody hears.
func TestPlacesOfAnOutageStayExpired(t *testing.T) {
	t.Parallel()
	o := newOutage(t)
	for i := range 20 {
		o.queue(t, o.d, fmt.Sprint("gone ", i)).(*claim).Forget() // its release was lost
	}
	o.lasts(t)
	o.d.subscriber.clock.Sleep(goneTTL + placeTTL + time.Second)
	if o.d.subscriber.keepAll() {
		t.Fatal("those who gave up are not forgotten")
	}
	o.d.subscriber.keeping = true
	next := o.queue(t, o.d, "next")
	if got := o.beat(t); !slices.Equal(got, []string{"first", "next"}) {
		t.Errorf("after a beat %q wait", got)
	}
	for _, c := range []driver.Claim{o.first, o.holder} {
		if err := c.Release(t.Context(), driver.End{}); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(placeTTL * 2 / 3); ; time.Sleep(10 * time.Millisecond) {
		if _, err := next.Try(t.Context()); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("who waits is not served")
		}
	}
}

// The first beat after a pause keeps the places of its own waiters, in order, though they have expired.
func TestBeatAfterAPauseKeepsItsWaiters(t *testing.T) {
	t.Parallel()
	for what, pause := range map[string]time.Duration{
		"of the link":            0,
		"of the process":         placeTTL + time.Second, // none of its waiters has called Try since
		"of the process, longer": goneTTL + 2*placeTTL,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			o := newOutage(t)
			o.queue(t, o.d, "second")
			last := o.queue(t, o.other, "last")
			o.beat(t)
			o.lasts(t, last)
			o.d.subscriber.clock.Sleep(pause)
			if got := o.beat(t); !slices.Equal(got, []string{"first", "second", "last"}) {
				t.Errorf("after a beat %q wait", got)
			}
		})
	}
}

// leads has owners of d wait in front of one of other. Their places have expired, and nobody has
// asked since.
func (o *outage) leads(t *testing.T, owners ...string) {
	t.Helper()
	if err := o.first.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	o.other.subscriber.mu.Lock()
	o.other.subscriber.keeping = true // its beats would remove the places
	o.other.subscriber.mu.Unlock()
	for _, owner := range owners {
		o.queue(t, o.d, owner)
	}
	o.queue(t, o.other, "last")
	const expire = `for _, who in ipairs(ARGV) do
			local place = {cmsgpack.unpack(redis.call('HGET', KEYS[1], 'w' .. who))}
			place[1] = 1
			redis.call('HSET', KEYS[1], 'w' .. who, cmsgpack.pack(unpack(place)))
		end`
	e := o.d.subscriber
	if err := e.client.Eval(t.Context(), expire, []string{o.d.keysOf("n").companion(kindDetails)}, owners).Err(); err != redis.Nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.crowds["lock:n"].waiters {
		w.tried = e.clock.Now()
	}
}

// queued returns who is in the queue, with or without a place that has expired.
func (o *outage) queued(t *testing.T) []string {
	t.Helper()
	owners, err := o.d.client.ZRange(t.Context(), o.d.keysOf("n").companion(kindQueue), 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	return owners
}

// The first beat after a pause keeps the place of its driver's first waiter too, which asks the
// server itself.
func TestBeatAfterAPauseKeepsTheFirst(t *testing.T) {
	t.Parallel()
	t.Run("before others", func(t *testing.T) {
		t.Parallel()
		o := newOutage(t)
		o.leads(t, "first", "second")
		o.beat(t)
		if got := o.queued(t); !slices.Equal(got, []string{"first", "second", "last"}) {
			t.Errorf("after a beat %q wait", got)
		}
	})
	t.Run("beside one that is gone", func(t *testing.T) {
		t.Parallel()
		o := newOutage(t)
		o.leads(t, "first", "gone")
		e := o.d.subscriber
		e.mu.Lock()
		gone := e.crowds["lock:n"].waiters["gone"]
		gone.tried = gone.tried.Add(-placeTTL - time.Second)
		e.mu.Unlock()
		o.beat(t)
		if got := o.queued(t); !slices.Equal(got, []string{"first", "last"}) {
			t.Errorf("after a beat %q wait", got)
		}
	})
}

// The first beat after a pause keeps the places of all waiters of a crowd that takes several
// scripts, and finds the first of them.
func TestBeatAfterAPauseKeepsALargeCrowd(t *testing.T) {
	t.Parallel()
	o := newOutage(t)
	o.leads(t, "first", "second")
	e := o.d.subscriber
	e.mu.Lock()
	k := e.crowds["lock:n"]
	k.waiters["first"].first = false
	e.mu.Unlock()
	wait := []string{"second"}
	for i := range maxBeat {
		wait = append(wait, fmt.Sprint("without a place ", i))
	}
	e.keepOne(k, roll{wait: append(wait, "first")})
	if got := o.queued(t); !slices.Equal(got, []string{"first", "second", "last"}) {
		t.Errorf("after two scripts %q wait", got)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !k.waiters["first"].first || k.waiters["second"].first {
		t.Error("the first does not know that it is first")
	}
}

// A claim that is released twice leaves the owner's next claim its notices.
func TestSecondReleaseLeavesTheNextClaimItsNotices(t *testing.T) {
	t.Parallel()
	d := driverOn(t, noServer(), nil)
	var lost error
	claimed := func(told func(error)) *claim {
		c, err := d.Claim(driver.Request{Resource: "n", Owner: "o", TTL: time.Minute, Lost: told})
		if err != nil {
			t.Fatal(err)
		}
		return c.(*claim)
	}
	former, next := claimed(func(error) {}), claimed(func(cause error) { lost = cause })
	former.update(func(now *state) { now.released(true) })
	d.subscriber.listen(next)
	if err := former.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("the second release: %v, want ErrLost without a call", err)
	}
	d.subscriber.take("e1:owhy")
	if !errors.Is(lost, driver.ErrEvicted) {
		t.Errorf("the next claim's eviction was told as %v", lost)
	}
}

// A renewal without an answer may have found a lease of the owner, so another release must ask.
func TestReleaseAfterARenewalWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	d := driverOn(t, noServer(), nil)
	claimed, err := d.Claim(driver.Request{Resource: "n", Owner: "o", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	c := claimed.(*claim)
	c.update(func(now *state) { now.released(true) })
	if _, err := c.Renew(t.Context(), time.Minute); err == nil || errors.Is(err, driver.ErrLost) {
		t.Fatalf("renewed without a server: %v", err)
	}
	if err := c.Release(t.Context(), driver.End{}); err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("released without a server: %v, want an unknown outcome", err)
	}
}

// Close does not wait for go-redis for long, which ignores contexts while it connects. Without a read timeout it would
// wait for a silent server for ever.
func TestCloseWithoutAnAnswerToTheSubscription(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent := make(chan net.Conn, 1)
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: -1, Dialer: func(context.Context, string, string) (net.Conn, error) {
			mine, theirs := net.Pipe()
			silent <- theirs
			return mine, nil
		}})
		d := driverOn(t, client, nil)
		c, err := d.Claim(driver.Request{Resource: "r", Owner: "o", TTL: time.Minute, Lost: func(error) {}})
		if err != nil {
			t.Fatal(err)
		}
		d.subscriber.listen(c.(*claim))
		server := <-silent
		go io.Copy(io.Discard, server)
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- d.Close() }()
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Error("Close waits for the server")
		}
		server.Close()
		client.Close()
	})
}

// A waiter waits for the subscription once. Without one, it then polls every retryUnsubscribed.
func TestWaiterPollsWithoutASubscription(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := noServer()
		defer client.Close()
		d := driverOn(t, client, nil)
		d.subscriber.running, d.subscriber.keeping = true, true // nobody subscribes
		p, err := d.pipelines.of(t.Context(), "", false)
		if err != nil {
			t.Fatal(err)
		}
		mine, theirs := net.Pipe()
		go converse(theirs, func(words []string) any {
			if isScript(words, scriptTake) {
				return int64(0)
			}
			return []any{int64(replyBusy), int64(0), int64(0), time.Minute.Milliseconds()}
		})
		p.conn = newConn(mine, 0, 0, p.forget, func() {})
		defer p.conn.end(errGone)
		c, err := d.Claim(driver.Request{Resource: "r", Owner: "o", TTL: time.Minute, Queue: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, takes := range []time.Duration{subscribeTimeout, 0, 0} {
			start := time.Now()
			_, err := c.Try(t.Context())
			busy, ok := errors.AsType[*driver.Busy](err)
			if took := time.Since(start); !ok || took != takes || busy.Retry != retryUnsubscribed {
				t.Errorf("after %v, want %v: %+v, %v", took, takes, busy, err)
			}
		}
	})
}

// A node of a cluster that hangs does not hold up the subscriptions to other nodes, however many slots it has.
func TestHungNodeHoldsUpNoOtherSubscription(t *testing.T) {
	t.Parallel()
	nodes := servers.StartCluster(t, 3)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}})
	t.Cleanup(func() { client.Close() })
	d, err := New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	var hung, live []*claim
	for i := range 30 {
		name := fmt.Sprint(i)
		node, err := client.MasterForKey(t.Context(), "lock:"+name)
		if err != nil {
			t.Fatal(err)
		}
		c, err := d.Claim(driver.Request{Resource: name, Owner: "o", TTL: time.Minute, Queue: true})
		if err != nil {
			t.Fatal(err)
		}
		if node.Options().Addr == nodes[0].Addr() {
			hung = append(hung, c.(*claim))
		} else {
			live = append(live, c.(*claim))
		}
	}
	for _, n := range nodes {
		n.Must(t, "CONFIG", "SET", "cluster-node-timeout", "60000")
	}
	defer nodes[0].Pause()()
	e := d.subscriber
	e.shards.running, e.keeping = true, true // by hand
	for _, c := range hung {
		c.arm()
	}
	e.life.Go(e.shards.run)
	for begun := false; !begun; time.Sleep(time.Millisecond) {
		e.mu.Lock()
		begun = len(e.shards.nodes) > 0
		e.mu.Unlock()
	}
	live[0].arm()
	if !e.hear(t.Context(), live[0], 15*time.Second) {
		t.Errorf("no subscription to a node that answers, beside %d slots of one that hangs", len(hung))
	}
}

// A beat has all places removed of those who wait no more, however many they are, and also when nobody else waits.
func TestAllGonePlacesAreRemoved(t *testing.T) {
	t.Parallel()
	const n = 2*maxBeat + 10
	d, _ := onServer(t, servers.StartRedis(t))
	e := d.subscriber
	e.keeping, e.due = true, e.clock.Now().Add(time.Hour) // by hand
	for _, owner := range []string{"holder", "waits"} {
		c, err := d.Claim(driver.Request{Resource: "r", Owner: owner, TTL: time.Minute, Queue: owner != "holder"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = c.Try(t.Context()); err != nil && !errors.Is(err, driver.ErrBusy) {
			t.Fatal(err)
		}
	}
	keys := d.keysOf("r")
	k := e.crowds[keys.lock]
	const copies = `local place = redis.call('HGET', KEYS[1], 'wwaits')
		for i = 1, ARGV[1] do redis.call('HSET', KEYS[1], 'w' .. i, place) redis.call('ZADD', KEYS[2], 1 + i, i) end`
	e.client.Eval(t.Context(), copies, []string{keys.companion(kindDetails), keys.companion(kindQueue)}, n)
	var gone []string
	for i := range n {
		gone = append(gone, fmt.Sprint(i+1))
	}
	places := func() int64 { return e.client.ZCard(t.Context(), keys.companion(kindQueue)).Val() }
	if got := places(); got != n+1 {
		t.Fatalf("%d have places", got)
	}
	for end := time.Now().Add(placeTTL); time.Now().Before(end); time.Sleep(keepPlace) {
		e.keepOne(k, roll{wait: []string{"waits"}})
	}
	e.keepOne(k, roll{wait: []string{"waits"}, gone: gone})
	if got := places(); got != 1 {
		t.Errorf("%d places are left of %d", got, n+1)
	}
	if w := k.waiters["waits"]; !w.first || w.kept != 0 {
		t.Error("the first does not know that it is first, and asks nobody")
	}
	e.mu.Lock()
	k.waiters["waits"].tried = k.waiters["waits"].tried.Add(-goneTTL)
	e.mu.Unlock()
	for end := time.Now().Add(10 * time.Second); e.keepAll(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("who was the last to wait is not forgotten")
		}
	}
}

// Who was kept by beats that fail now asks the server at its next Try.
func TestFailedBeatKeepsNobody(t *testing.T) {
	t.Parallel()
	d, err := New(noServer(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	e := d.subscriber
	e.clock = new(boottime.Clock) // stands still
	e.running, e.keeping, e.own.hears = true, true, true
	dc, err := d.Claim(driver.Request{Resource: "r", Owner: "o", TTL: time.Minute, Queue: true})
	if err != nil {
		t.Fatal(err)
	}
	c := dc.(*claim)
	c.arm()
	e.placed(c, false)
	k := e.crowds[c.keys.lock]
	e.beaten(k, roll{wait: []string{"o"}}, false, []any{int64(7000), "another", []any{}, []any{int64(0), int64(0), int64(0), int64(0)}}, e.clock.Now())
	if e.kept(c) == nil {
		t.Fatal("a beat has kept nobody")
	}
	e.keepOne(k, roll{wait: []string{"o"}})
	if e.kept(c) != nil {
		t.Error("it is refused unasked after a beat without an answer")
	}
}

// Who is told that others wait is the claim that holds with the fence that the message has, or one of which an attempt
// may have been granted with it; no other of the owner's, and none that was released.
func TestRecallIsOfOneGrant(t *testing.T) {
	t.Parallel()
	d, err := New(noServer(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	told := make(map[string]int)
	claimed := func(name string) *claim {
		c, err := d.Claim(driver.Request{Resource: name, Owner: "o", TTL: time.Minute, Queue: true, Wanted: func() { told[name]++ }})
		if err != nil {
			t.Fatal(err)
		}
		d.subscriber.listen(c.(*claim))
		return c.(*claim)
	}
	a, b := claimed("a"), claimed("b")
	for _, step := range []struct {
		what, message string
		a, b          state
		told          string
	}{
		{"b holds, and a may hold", "r1:o70", state{phase: queued}, state{phase: held, grant: grant{fence: 70}}, "b"},
		{"a waits and may hold", "r1:o70", state{phase: queued, floor: 60}, state{phase: idle}, "a"},
		{"a waits since that grant", "r1:o70", state{phase: queued, floor: 70}, state{phase: idle}, ""},
		{"the answer to a first attempt is on its way", "r1:o70", state{uncertain: uncertain{attempt: true}}, state{}, "a"},
		{"neither has asked", "r1:o70", state{}, state{}, ""},
		{"it was released", "r1:o70", state{phase: over}, state{phase: leaving, grant: grant{fence: 70}}, ""},
		{"another's", "r1:p70", state{phase: held, grant: grant{fence: 70}}, state{}, ""},
		{"no fence", "r1:o", state{phase: held}, state{uncertain: uncertain{attempt: true}}, ""},
	} {
		clear(told)
		a.update(func(now *state) { *now = step.a })
		b.update(func(now *state) { *now = step.b })
		d.subscriber.take(step.message)
		if got := fmt.Sprint(told); step.told == "" && len(told) > 0 || step.told != "" && (len(told) != 1 || told[step.told] != 1) {
			t.Errorf("%s: told %s; want %q", step.what, got, step.told)
		}
	}
	a.Forget()
	a.update(func(now *state) { *now = state{phase: held, grant: grant{fence: 70}} })
	b.update(func(now *state) { *now = state{} })
	clear(told)
	if d.subscriber.take("r1:o70"); len(told) > 0 {
		t.Errorf("told %v when it was forgotten", told)
	}
}

// A grant that is brought tells whether others wait. Drivers of before leave that out.
func TestBroughtGrantTellsOfOthers(t *testing.T) {
	t.Parallel()
	for others, want := range map[string]int{" 1": 1, "": 0, " 0": 0} {
		d, err := New(noServer(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		told := 0
		c, err := d.Claim(driver.Request{Resource: "a", Owner: "o", TTL: time.Minute, Queue: true, Wanted: func() { told++ }})
		if err != nil {
			t.Fatal(err)
		}
		a := c.(*claim).arm()
		d.subscriber.take(fmt.Sprintf("g1:o%d 5000 1000 1000", a.number) + others)
		if len(a.granted) != 1 || told != want {
			t.Errorf("%q: granted %d, told %d", others, len(a.granted), told)
		}
	}
}

// A subscription looks after attempts that have no answer yet, too: what was granted may be wanted since.
func TestSubscriptionLooksAfterAttempts(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, _ := onServer(t, r)
	claimed := func(d *Driver, owner string, queue bool, wanted func()) *claim {
		c, err := d.Claim(driver.Request{Resource: "n", Owner: owner, TTL: time.Minute, Queue: queue, Wanted: wanted})
		if err != nil {
			t.Fatal(err)
		}
		return c.(*claim)
	}
	if _, err := claimed(d, "holder", false, nil).Try(t.Context()); err != nil {
		t.Fatal(err)
	}
	told := 0
	c := claimed(d, "holder", false, func() { told++ })
	d.subscriber.running = true // by hand
	d.subscriber.listen(c)
	look := func(what string, want int) {
		t.Helper()
		told = 0
		if d.subscriber.lookAfter(t.Context(), c); told != want {
			t.Errorf("%s: told %d times", what, told)
		}
	}
	waiter := claimed(d, "waiter", true, nil)
	waits := func() {
		t.Helper()
		if _, err := waiter.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
			t.Fatal(err)
		}
	}
	c.update(func(now *state) { now.uncertain.attempt = true }) // as if its answer were on its way
	look("nobody waits", 0)
	for end := time.Now().Add(10 * time.Second); told == 0 && time.Now().Before(end); { // its place may end meanwhile
		waits()
		d.subscriber.lookAfter(t.Context(), c)
	}
	if told != 1 {
		t.Errorf("another waits: told %d times", told)
	}
	waits()
	c.update(func(now *state) { now.uncertain.attempt = false })
	look("it asks for nothing", 0)
	c.update(func(now *state) { now.uncertain.attempt = true })
	was := c.load()
	c.update(func(now *state) { now.releases++ })
	if d.subscriber.stillWants(c, was) {
		t.Error("it may be told of what was there before its release")
	}
	c.Forget()
	look("it was forgotten", 0)
}
