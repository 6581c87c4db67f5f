package nats

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// refused reports what a driver refuses that grants nothing.
func refused(t *testing.T, d driver.Driver) {
	t.Helper()
	if g, err := try(t, claim(t, d, "a", "one"), ttl); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("Try: %v, %v; want ErrUnsupported", g, err)
	}
}

// A bucket that another one writes to keeps no lease: a release there would be one here.
func TestBucketThatOthersWriteTo(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	bucket(t, s, jetstream.KeyValueConfig{Bucket: "east"})
	source := &jetstream.StreamSource{Name: "KV_east"}
	for what, config := range map[string]jetstream.StreamConfig{
		"source":    {Sources: []*jetstream.StreamSource{source}, Subjects: []string{"$KV.locks.>"}},
		"mirror":    {Mirror: source},
		"transform": {SubjectTransform: &jetstream.SubjectTransformConfig{Source: "$KV.locks.>", Destination: "$KV.locks.x.>"}, Subjects: []string{"$KV.locks.>"}},
	} {
		t.Run(what, func(t *testing.T) {
			js := connected(t, s)
			config.Name, config.MaxMsgsPerSubject, config.AllowRollup, config.AllowDirect = "KV_locks", 1, true, true
			if _, err := js.CreateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			refused(t, on(t, js))
			if err := js.DeleteStream(t.Context(), "KV_locks"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Servers that know nothing of each other have a bucket each: who comes to one of them would hold what another holds at
// the other.
func TestServersThatAreNoCluster(t *testing.T) {
	t.Parallel()
	one, two := servers.StartNATS(t, 1, "")[0], servers.StartNATS(t, 1, "")[0]
	for _, s := range []*servers.NATS{one, two} {
		if err := natslock.CreateBucket(t.Context(), connected(t, s), "locks", 1); err != nil {
			t.Fatal(err)
		}
	}
	d, err := natslock.OpenURL(t.Context(), "nats://"+one.Addr()+","+two.Addr()+"/locks")
	if err != nil {
		t.Fatal(err)
	}
	defer d.(*natslock.Driver).Close()
	refused(t, d)
	if _, err := openURL("nats://" + one.Addr() + "," + two.Addr() + "/locks"); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("a URL that creates: %v; want ErrUnsupported", err)
	}
}
