package kubelock

import (
	"encoding/json"
	"errors"
	"strconv"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A cluster of one Lease, changed as the server changes it.
type cluster struct {
	t testing.TB
	l coordination.Lease
}

func (c *cluster) item() (record.Record, shown) {
	c.t.Helper()
	i, err := itemOf("a", &c.l)
	if err != nil {
		c.t.Fatal(err)
	}
	r, err := record.Decode(i.Value)
	if err != nil {
		c.t.Fatal(err)
	}
	return r, shownBy(i.Version)
}

// write has a record take the place of what there is.
func (c *cluster) write(r record.Record, at time.Time) {
	c.t.Helper()
	_, before := c.item()
	r.Nonce = "n"
	b, err := json.Marshal(before.change("a", &r, at))
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(b, &c.l); err != nil { // near enough to a merge for what is never left out
		c.t.Fatal(err)
	}
	c.raised()
}

func (c *cluster) raised() {
	n, err := numberOf(&c.l)
	if err != nil {
		c.t.Fatal(err)
	}
	c.l.ResourceVersion = strconv.FormatUint(n+1, 10)
}

// elect does what leader election does when it takes a Lease over, and when it gives it up.
func (c *cluster) elect(identity string, seconds int32, at time.Time) {
	transitions := value(c.l.Spec.LeaseTransitions) + 1
	now := meta.NewMicroTime(at)
	c.l.Spec = coordination.LeaseSpec{HolderIdentity: &identity, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now, LeaseTransitions: &transitions}
	c.raised()
}

func newCluster(t testing.TB) *cluster {
	return &cluster{t, coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: "a", UID: "u", ResourceVersion: "7"}}}
}

func claim(owner string, status record.Status, ttl time.Duration, beat uint64) record.Claim {
	return record.Claim{Owner: owner, Status: status, TTL: ttl, Beat: beat, Note: "note of " + owner, Since: 1e15}
}

// Leader election reads renewTime to the second: a renewal that it cannot tell from the one before would be
// none for it.
func TestRenewalsAreTellable(t *testing.T) {
	t.Parallel()
	c, now := newCluster(t), time.Unix(1_800_000_000, 0)
	seen := map[string]bool{}
	for beat, at := range []time.Time{now, now, now.Add(time.Millisecond), now.Add(-time.Hour), now.Add(-time.Hour), now.Add(time.Hour)} {
		c.write(record.Record{Fence: 1, Claims: []record.Claim{claim("first", record.Holding, 2500*time.Millisecond, uint64(beat)+1)}}, at)
		second := c.l.Spec.RenewTime.Format(time.RFC3339)
		if seen[second] {
			t.Errorf("renewed again at %s", second)
		}
		seen[second] = true
		if *c.l.Spec.LeaseDurationSeconds != 3 || *c.l.Spec.LeaseTransitions != 1 {
			t.Errorf("%d seconds, %d transitions", *c.l.Spec.LeaseDurationSeconds, *c.l.Spec.LeaseTransitions)
		}
	}
	before := c.l.Spec.DeepCopy()
	c.write(record.Record{Fence: 1, Claims: []record.Claim{claim("first", record.Holding, 2500*time.Millisecond, 6), claim("waits", record.Waiting, 9*time.Second, 1)}}, now.Add(2*time.Hour))
	if !c.l.Spec.RenewTime.Equal(before.RenewTime) || *c.l.Spec.LeaseDurationSeconds != 3 {
		t.Errorf("a waiter has renewed: %v, %v", c.l.Spec, before)
	}
	c.write(record.Record{Fence: 1, Claims: []record.Claim{claim("first", record.Holding, 2500*time.Millisecond, 6), claim("sharer", record.Holding, 9*time.Second, 1)}}, now)
	if !c.l.Spec.RenewTime.After(before.RenewTime.Time) || *c.l.Spec.LeaseDurationSeconds != 9 {
		t.Errorf("a sharer has not: %v, %v", c.l.Spec, before)
	}
	c.write(record.Record{Fence: 1}, now)
	if *c.l.Spec.HolderIdentity != "" || c.l.Spec.AcquireTime != nil || *c.l.Spec.LeaseTransitions != 1 {
		t.Errorf("free: %v", c.l.Spec)
	}
}

// Whoever the spec names and the record does not has taken over from all whom the record has; those who
// wait still do, and nothing that we write then changes the spec.
func TestAnotherHolder(t *testing.T) {
	t.Parallel()
	c, now := newCluster(t), time.Unix(1_800_000_000, 0)
	c.write(record.Record{Fence: 5, Claims: []record.Claim{
		claim("ours", record.Holding, time.Second, 1), claim("", record.Lingering, time.Second, 2), claim("waits", record.Waiting, time.Second, 3),
	}}, now)
	c.elect("controller-1", 15, now)
	r, s := c.item()
	if len(r.Claims) != 2 || r.Claims[0].Note != "controller-1" || r.Claims[0].TTL != 15*time.Second || r.Claims[1].Owner != "waits" || s.Foreign != r.Claims[0].Owner || r.Nonce == "n" {
		t.Fatalf("%+v, %+v", r, s)
	}
	first, spec := r.Claims[0], c.l.Spec.DeepCopy()
	c.write(r, now.Add(time.Minute))
	if *c.l.Spec.HolderIdentity != "controller-1" || !c.l.Spec.RenewTime.Equal(spec.RenewTime) {
		t.Errorf("the spec was changed: %v", c.l.Spec)
	}
	if r, _ = c.item(); r.Claims[0] != first {
		t.Errorf("%+v is another than %+v, although nothing was renewed", r.Claims[0], first)
	}
	c.l.Spec.RenewTime = &meta.MicroTime{Time: now.Add(time.Second)}
	if r, _ = c.item(); r.Claims[0].Beat == first.Beat || r.Claims[0].Owner != first.Owner {
		t.Errorf("%+v is the same as %+v, although it was renewed", r.Claims[0], first)
	}
	r.Claims = append(r.Claims[1:], claim("ours", record.Holding, time.Second, 9))
	c.write(r, now)
	if r, s = c.item(); s.Foreign != "" || len(r.Claims) != 2 || *c.l.Spec.LeaseTransitions != 3 || r.Nonce != "n" {
		t.Errorf("taken over: %+v, %+v", r, s)
	}
	c.elect("", 1, now)
	if r, s = c.item(); s.Foreign != "" || len(r.Claims) != 1 || r.Nonce == "n" {
		t.Errorf("released by another: %+v, %+v", r, s)
	}
}

// A holder that does not say since when it holds is shown as one since its last renewal, or since now.
func TestHolderWithoutAcquireTime(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	renewed := meta.NewMicroTime(now.Add(-time.Minute))
	for _, c := range []struct {
		acquire, renew *meta.MicroTime
		held           time.Duration
	}{
		{nil, &renewed, time.Minute},
		{&meta.MicroTime{}, &renewed, time.Minute},
		{nil, nil, 0},
		{&meta.MicroTime{Time: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}, nil, 0},
	} {
		one := newCluster(t)
		one.elect("somebody", 15, now)
		one.l.Spec.AcquireTime, one.l.Spec.RenewTime = c.acquire, c.renew
		r, _ := one.item()
		if all := r.State(record.Instant(now.UnixMicro()), "a").Holders; len(all) != 1 || all[0].Held != c.held {
			t.Errorf("acquired at %v and renewed at %v: %+v; want held for %v", c.acquire, c.renew, all, c.held)
		}
	}
}

// What makes no sense is told, and what has no fence is refused.
func TestStrangeLeases(t *testing.T) {
	t.Parallel()
	somebody, none := "somebody", int32(0)
	for want, l := range map[error]coordination.Lease{
		driver.ErrCorrupt:     {ObjectMeta: meta.ObjectMeta{ResourceVersion: "7"}, Spec: coordination.LeaseSpec{HolderIdentity: &somebody, LeaseDurationSeconds: &none}},
		driver.ErrUnsupported: {ObjectMeta: meta.ObjectMeta{ResourceVersion: "99999999999999999"}},
	} {
		if _, err := itemOf("a", &l); !errors.Is(err, want) {
			t.Errorf("%v; want %v", err, want)
		}
	}
	for _, text := range []string{"", "{}", `{"v":1}`, `{"v":3,"nonce":"x"}`, "hello"} {
		l := coordination.Lease{ObjectMeta: meta.ObjectMeta{ResourceVersion: "7", Annotations: map[string]string{recordKey: text}}}
		if i, err := itemOf("a", &l); err != nil || string(i.Value) != text || i.Value == nil {
			t.Errorf("%q: %q, %v", text, i.Value, err)
		}
	}
}
