package natslock

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

// An answer says that nothing was written only where it is known: a leader whose store is closed,
// because it stops, says that storing failed of what the others have stored.
func TestWhatIsUnknownIsNotCalledRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code    jetstream.ErrorCode
		says    string
		refused bool
		means   error
	}{
		{10077, "maximum bytes exceeded", true, ErrFull},
		{10077, "maximum messages exceeded", true, ErrFull},
		{10077, "store is closed", false, ErrUnreachable},
		{10002, "resource limits exceeded for account", true, ErrFull},
		{10054, "message size exceeds maximum allowed", true, ErrFull},
		{10059, "stream not found", false, ErrNoBucket},
		{10008, "JetStream system temporarily unavailable", false, ErrUnreachable},
		{65535, "what nobody knows yet", false, ErrUnreachable},
	} {
		err := explain(t.Context(), &jetstream.APIError{Code: 503, ErrorCode: c.code, Description: c.says})
		if errors.Is(err, caslock.ErrRefused) != c.refused || !errors.Is(err, c.means) {
			t.Errorf("%d %s: %v", c.code, c.says, err)
		}
		if full := c.means == ErrFull; errors.Is(err, driver.ErrFull) != full {
			t.Errorf("%d %s: %v is driver.ErrFull: %v", c.code, c.says, err, !full)
		}
	}
}

// What the client does not keep for the next connection, and what a server has given to nobody, is not sent.
func TestWhatIsNotKeptIsUnsent(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nats.ErrReconnectBufExceeded, jetstream.ErrNoStreamResponse} {
		if err = explain(t.Context(), err); !errors.Is(err, caslock.ErrUnsent) || !errors.Is(err, ErrUnreachable) {
			t.Errorf("%v", err)
		}
	}
	if o := optionsOf(t, &storeurl.URL{}); o.ReconnectBufSize >= 0 {
		t.Errorf("a connection of a URL keeps %d bytes for the next", o.ReconnectBufSize)
	}
}
