package natslock

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The server forgets a heartbeat in time, and keeps records and places for longer than needed, unless its clock counts.
func TestTTLOfMessages(t *testing.T) {
	t.Parallel()
	b := &bucket{ttls: true}
	for _, c := range []struct {
		name        string
		serverClock bool
		want        time.Duration
	}{
		{"a", false, 12*time.Second + spare},
		{"a", true, 12 * time.Second},
		{"a" + parted + "place", false, 12*time.Second + spare},
		{parted + "process", false, 12 * time.Second},
	} {
		msg, err := b.message("subject", c.name, []byte("value"), 12*time.Second, c.serverClock)
		if err != nil {
			t.Fatal(err)
		}
		if ttl := msg.Header.Get(jetstream.MsgTTLHeader); ttl != c.want.String() {
			t.Errorf("%q, server clock %v: %s; want %v", c.name, c.serverClock, ttl, c.want)
		}
	}
}
