package natslock

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/driver"
)

// A server's clock matters where it ends leases, and is told of in any case.
func TestClockFinding(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		serverClock bool
		apart       time.Duration
		level       driver.Level
		says        string
	}{
		{false, 0, driver.Fine, "within"},
		{false, time.Minute, driver.Fine, "1m0s ahead of ours: no lease ends by it"},
		{true, 0, driver.Fine, "within"},
		{true, -time.Minute, driver.Weak, "1m0s behind ours: leases end by it"},
	} {
		d := &Driver{store: &store{serverClock: c.serverClock}}
		if f := d.clockFinding(now, now.Add(c.apart), now); f.Level != c.level || !strings.Contains(f.Text, c.says) {
			t.Errorf("%+v: %v, %v", c, f.Level, f)
		}
	}
}

// A bucket as CreateBucket makes it has no fault but its one replica; what others may set is told.
func TestKeepingFindings(t *testing.T) {
	t.Parallel()
	good := jetstream.StreamConfig{Replicas: 3, FirstSeq: 1 << 50, Discard: jetstream.DiscardNew, MaxBytes: -1, MaxMsgs: -1}
	for says, spoil := range map[string]func(c *jetstream.StreamConfig){
		"":                      func(*jetstream.StreamConfig) {},
		"is in memory":          func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"one replica":           func(c *jetstream.StreamConfig) { c.Replicas = 1 },
		"messages from 1":       func(c *jetstream.StreamConfig) { c.FirstSeq = 0 },
		"forgets every value":   func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"drops old values when": func(c *jetstream.StreamConfig) { c.Discard, c.MaxBytes = jetstream.DiscardOld, 1<<20 },
	} {
		config := good
		spoil(&config)
		var weak []string
		for _, f := range keeping(&config) {
			if f.Level > driver.Fine {
				weak = append(weak, f.Text)
			}
		}
		if says == "" && len(weak) > 0 || says != "" && (len(weak) != 1 || !strings.Contains(weak[0], says)) {
			t.Errorf("%q: %q", says, weak)
		}
	}
}
