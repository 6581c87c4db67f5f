package nats

import (
	"context"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/natslock"
)

// Nobody answers a question that comes while servers elect a leader. So it is asked again: one call
// outlasts the election.
func TestQuestionOutlastsElection(t *testing.T) {
	t.Parallel()
	all := servers.StartNATS(t, 3, "")
	open(t, urlOf(all)).(interface{ Close() error }).Close()
	gone := leader(t, all)
	var asked []driver.Driver
	for _, s := range all {
		if s != gone { // so that no connection is lost
			d, err := natslock.OpenURL(t.Context(), "nats://"+s.Addr()+"/locks")
			if err != nil {
				t.Fatal(err)
			}
			defer d.(*natslock.Driver).Close()
			asked = append(asked, d)
		}
	}
	asks := func() {
		t.Helper()
		for _, d := range asked {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			_, err := d.(driver.Inspector).Inspect(ctx, "a")
			cancel()
			if err != nil {
				t.Errorf("Inspect: %v", err)
			}
		}
	}
	asks()
	gone.Kill()
	asks()
}
