package nats

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

func bucket(t testing.TB, s *servers.NATS, config jetstream.KeyValueConfig) {
	t.Helper()
	if _, err := connected(t, s).CreateKeyValue(t.Context(), config); err != nil {
		t.Fatal(err)
	}
}

// anew deletes the bucket and makes it again.
func anew(t testing.TB, s *servers.NATS) {
	t.Helper()
	js := connected(t, s)
	if err := js.DeleteKeyValue(t.Context(), "locks"); err != nil {
		t.Fatal(err)
	}
	if err := natslock.CreateBucket(t.Context(), js, "locks", 1); err != nil {
		t.Fatal(err)
	}
}

// A bucket that was made anew gives no fence again, and no number of a message by which a process that
// knew the former one could take another's record for what it has seen.
func TestBucketMadeAnew(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	if err := natslock.CreateBucket(t.Context(), connected(t, s), "locks", 1); err != nil {
		t.Fatal(err)
	}
	d, other := on(t, connected(t, s)), on(t, connected(t, s))
	holder, idle := claim(t, d, "held", "one"), claim(t, d, "idle", "one")
	first := claimtest.Granted(t, holder)
	anew(t, s)
	next := claim(t, other, "held", "two")
	if g := claimtest.Granted(t, next); g.Fence <= first.Fence {
		t.Errorf("fence %d after %d", g.Fence, first.Fence)
	}
	if g, err := holder.Renew(t.Context(), ttl); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of a lease of the former bucket: %v, %v; want ErrLost", g, err)
	}
	if _, err := next.Renew(t.Context(), ttl); err != nil {
		t.Errorf("Renew of the holder: %v", err)
	}

	anew(t, s)
	claimtest.Granted(t, idle)
	claimtest.Released(t, idle)
	anew(t, s)
	next = claim(t, other, "idle", "two")
	claimtest.Granted(t, next)
	if _, err := next.Renew(t.Context(), ttl); err != nil { // the second message, as the release was
		t.Fatal(err)
	}
	if g, err := try(t, idle, ttl); err == nil {
		t.Errorf("a second holder: %v", g)
	}
}

// A server that has lost its last messages gives their numbers to others. Who knows of a number from
// before takes it for nothing.
func TestLastMessagesLost(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	if err := natslock.CreateBucket(t.Context(), connected(t, s), "locks", 1); err != nil {
		t.Fatal(err)
	}
	d, other := on(t, connected(t, s)), on(t, connected(t, s))
	s.Kill()
	before := servers.Copied(t, s.Data())
	s.Begin()
	s.Ready()
	holder, next := claim(t, d, "a", "one"), claim(t, other, "a", "two")
	claimtest.Granted(t, holder)
	s.Kill()
	servers.PutBack(t, s.Data(), before)
	s.Begin()
	s.Ready()
	claimtest.Granted(t, next)
	if g, err := holder.Renew(t.Context(), ttl); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of a lease that was lost: %v, %v; want ErrLost", g, err)
	}
	if _, err := next.Renew(t.Context(), ttl); err != nil {
		t.Errorf("Renew of the holder: %v", err)
	}
}

// It may do so while all connections last, which are to other servers of its cluster.
func TestLastMessagesLostBehindAnotherServer(t *testing.T) {
	t.Parallel()
	all := servers.StartNATS(t, 3, "")
	if err := natslock.CreateBucket(t.Context(), connected(t, all[0]), "locks", 1); err != nil {
		t.Fatal(err)
	}
	has := leader(t, all)
	near := all[0]
	if near == has {
		near = all[1]
	}
	d, other := on(t, connected(t, near)), on(t, connected(t, near))
	has.Kill()
	before := servers.Copied(t, has.Data())
	has.Begin()
	has.Ready()
	holder, next := claim(t, d, "a", "one"), claim(t, other, "a", "two")
	tries := func(c driver.Claim) {
		t.Helper()
		electing(t, "Try", nil, func() error { _, err := try(t, c, 10*time.Second); return err })
	}
	tries(holder)
	has.Kill()
	servers.PutBack(t, has.Data(), before)
	has.Begin()
	has.Ready()
	tries(next)
	if g, err := holder.Renew(t.Context(), ttl); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of a lease that was lost: %v, %v; want ErrLost", g, err)
	}
	if _, err := next.Renew(t.Context(), ttl); err != nil {
		t.Errorf("Renew of the holder: %v", err)
	}
}

// A bucket that was made anew and begins at 1, as did the former one, gives the former numbers again. What is known of
// one of them is not taken for what another has written.
func TestBucketMadeAnewFromOne(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	js := connected(t, s)
	plain := jetstream.KeyValueConfig{Bucket: "locks"}
	bucket(t, s, plain)
	d, other := on(t, connected(t, s)), on(t, connected(t, s))
	holder, next := claim(t, d, "a", "one"), claim(t, other, "a", "two")
	claimtest.Granted(t, holder)
	if err := js.DeleteKeyValue(t.Context(), "locks"); err != nil {
		t.Fatal(err)
	}
	bucket(t, s, plain)
	claimtest.Granted(t, next)
	if g, err := holder.Renew(t.Context(), ttl); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of a lease of the former bucket: %v, %v; want ErrLost", g, err)
	}
	if _, err := next.Renew(t.Context(), ttl); err != nil {
		t.Errorf("Renew of the holder: %v", err)
	}
}

// What cannot be sent is not kept until it can: a claim that was given up while the server was away is
// not granted when it is back.
func TestNothingIsSentLater(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	if err := natslock.CreateBucket(t.Context(), connected(t, s), "locks", 1); err != nil {
		t.Fatal(err)
	}
	js := connected(t, s)
	d := on(t, js)
	before := claim(t, d, "a", "before")
	claimtest.Granted(t, before) // so that the next is one publish
	claimtest.Released(t, before)
	s.Kill()
	away(t, js)
	c := claim(t, d, "a", "one")
	if g, err := try(t, c, time.Second); err == nil {
		t.Fatalf("granted by nobody: %v", g)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	_ = c.Release(ctx, driver.End{}) // there is nobody to be told
	cancel()
	s.Begin()
	s.Ready()
	nobodyHolds(t, s)
}

// A breaking JetStream ends the connection right before a message is published, once.
type breaking struct {
	jetstream.JetStream
	once sync.Once
	end  func()
}

func (b *breaking) PublishMsg(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	b.once.Do(b.end)
	return b.JetStream.PublishMsg(ctx, msg, opts...)
}

// Nor is that kept which was to be sent when the connection broke, where the client keeps nothing, as that of a URL.
func TestNothingIsKeptWhenTheConnectionBreaks(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	if err := natslock.CreateBucket(t.Context(), connected(t, s), "locks", 1); err != nil {
		t.Fatal(err)
	}
	js := connected(t, s, nats.ReconnectBufSize(-1))
	d := on(t, &breaking{JetStream: js, end: func() { s.Kill(); away(t, js) }})
	c := claim(t, d, "a", "one")
	if g, err := try(t, c, time.Second); err == nil {
		t.Fatalf("granted by nobody: %v", g)
	}
	s.Begin()
	s.Ready()
	nobodyHolds(t, s)
	if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release: %v; want ErrLost", err)
	}
}

// away returns when the client sees that the server is gone.
func away(t testing.TB, js jetstream.JetStream) {
	t.Helper()
	for end := time.Now().Add(ttl); js.Conn().IsConnected(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Error("the client does not see that the server is gone")
			return
		}
	}
}

// nobodyHolds looks for a while.
func nobodyHolds(t testing.TB, s *servers.NATS) {
	t.Helper()
	look := on(t, connected(t, s))
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		st, err := look.Inspect(t.Context(), "a")
		if err != nil || len(st.Holders) > 0 {
			t.Fatalf("held by nobody: %v, %v", st, err)
		}
	}
}

// A bucket that forgets after a time gives no lease that it may forget.
func TestBucketThatForgets(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	bucket(t, s, jetstream.KeyValueConfig{Bucket: "locks", TTL: 2 * time.Minute})
	d := on(t, connected(t, s))
	c := claim(t, d, "a", "one")
	for range 2 {
		claimtest.Granted(t, c)
		claimtest.Released(t, c)
	}
	long := claimtest.New(t, d, driver.Request{Resource: "a", Owner: "long", TTL: 2 * time.Minute})
	if g, err := try(t, long, ttl); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("a lease that is forgotten before it ends: %v, %v; want ErrUnsupported", g, err)
	}
	claimtest.Granted(t, c)
	if g, err := c.Renew(t.Context(), 2*time.Minute); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("Renew for longer than the bucket remembers: %v, %v; want ErrUnsupported", g, err)
	}
	if err := d.RaiseFence(t.Context(), "a", 1<<62); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("a raised fence that is forgotten: %v; want ErrUnsupported", err)
	}
	claimtest.Released(t, c)
}

// A bucket that keeps history keeps none of a lock: a former value would be there again when the mark
// of a release has ended.
func TestBucketWithHistory(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	bucket(t, s, jetstream.KeyValueConfig{Bucket: "locks", History: 8, LimitMarkerTTL: time.Second})
	d := on(t, connected(t, s))
	c := claim(t, d, "a", "one")
	claimtest.Granted(t, c)
	if _, err := c.Renew(t.Context(), ttl); err != nil {
		t.Fatal(err)
	}
	claimtest.Released(t, c)
	stream, err := connected(t, s).Stream(t.Context(), "KV_locks")
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 1 {
		t.Errorf("%d messages of one name", n)
	}
}

// A driver outlives its bucket, also where the next one takes no TTL.
func TestBucketMadeOtherwise(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	js := connected(t, s)
	if err := natslock.CreateBucket(t.Context(), js, "locks", 1); err != nil {
		t.Fatal(err)
	}
	d := on(t, connected(t, s))
	c := claim(t, d, "a", "one")
	claimtest.Granted(t, c)
	if err := js.DeleteKeyValue(t.Context(), "locks"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.List(t.Context(), "", "", 100); !errors.Is(err, natslock.ErrNoBucket) {
		t.Errorf("List: %v; want ErrNoBucket", err)
	}
	if _, err := try(t, claim(t, d, "b", "one"), ttl); !errors.Is(err, natslock.ErrNoBucket) {
		t.Errorf("Try: %v; want ErrNoBucket", err)
	}
	bucket(t, s, jetstream.KeyValueConfig{Bucket: "locks"})
	claimtest.Granted(t, claim(t, d, "a", "two"))
	claimtest.Granted(t, claim(t, d, "b", "two"))
}

// filled takes locks until one is refused for want of room.
func filled(t testing.TB, d driver.Driver) (held []driver.Claim) {
	t.Helper()
	for {
		c := claim(t, d, fmt.Sprint("n", len(held)), "one")
		if _, err := try(t, c, ttl); err != nil {
			if !errors.Is(err, natslock.ErrFull) || len(held) == 0 {
				t.Errorf("Try of lock %d: %v; want ErrFull", len(held), err)
			}
			return held
		}
		held = append(held, c)
	}
}

// Whoever holds can release in a bucket that is full, and holds until the deadline at most.
func TestFullBucket(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	bucket(t, s, jetstream.KeyValueConfig{Bucket: "locks", MaxBytes: 4096, LimitMarkerTTL: time.Hour})
	d := on(t, connected(t, s))
	for i, c := range filled(t, d) {
		if err := c.Release(t.Context(), driver.End{}); err != nil {
			t.Errorf("Release of lock %d: %v", i, err)
		}
	}
	claimtest.Granted(t, claim(t, d, "n0", "two"))
}

// An account that is full is told as such, and that nothing was written. It may refuse releases, too.
func TestFullAccount(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{1, 3} {
		s := servers.StartNATS(t, replicas, "accounts { a { jetstream { max_file: 12000, max_mem: 0 }, users: [{user: u, password: pw}] } }\n")[0]
		js := connected(t, s, nats.UserInfo("u", "pw"))
		if err := natslock.CreateBucket(t.Context(), js, "locks", replicas); err != nil {
			t.Fatal(err)
		}
		for i, c := range filled(t, on(t, js)) {
			if err := c.Release(t.Context(), driver.End{}); err != nil && !errors.Is(err, natslock.ErrFull) {
				t.Errorf("%d replicas: Release of lock %d: %v", replicas, i, err)
			}
		}
	}
}

// Holders fill a record up to the bucket's bound for a value, and take nothing from those who hold. Waiters have keys of
// their own and fill nothing.
func TestFullRecord(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	bucket(t, s, jetstream.KeyValueConfig{Bucket: "locks", MaxValueSize: 4096, LimitMarkerTTL: time.Hour})
	d := on(t, connected(t, s))
	const most = 100
	asks := func(name string, r driver.Request) (driver.Claim, error) {
		r.Resource, r.Owner, r.TTL = "a", name, ttl
		c, err := d.Claim(r)
		if err != nil {
			t.Fatal(err)
		}
		_, err = try(t, c, ttl)
		return c, err
	}
	var holders []driver.Claim
	for {
		c, err := asks(fmt.Sprint("holder ", len(holders)), driver.Request{Mode: driver.Shared})
		if errors.Is(err, natslock.ErrFull) {
			break
		}
		if err != nil || len(holders) == most {
			t.Fatalf("Try of holder %d: %v", len(holders), err)
		}
		holders = append(holders, c)
	}
	for i := range most {
		if _, err := asks(fmt.Sprint("waiter ", i), driver.Request{Queue: true}); !errors.Is(err, driver.ErrBusy) {
			t.Fatalf("Try of waiter %d: %v", i, err)
		}
	}
	for i, c := range holders {
		if _, err := c.Renew(t.Context(), ttl); err != nil {
			t.Fatalf("Renew of holder %d: %v", i, err)
		}
	}
	for _, c := range holders {
		claimtest.Released(t, c)
	}
}
