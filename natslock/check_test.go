package natslock

import (
	"strings"
	"testing"
	"time"

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
