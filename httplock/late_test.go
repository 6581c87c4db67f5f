package httplock_test

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/httplock"
	"github.com/leasehold-go/leasehold/memory"
)

// Events that never come hold up the first claims, and not each.
func TestAStreamThatNeverOpensCostsOneWait(t *testing.T) {
	t.Parallel()
	front, address := newBetween(t, instances(t, memory.NewServer(), 1, nil))
	front.says("/v1/events", "")
	d, err := httplock.Connect(t.Context(), address, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	began := time.Now()
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		c, err := d.Claim(driver.Request{Resource: name, Owner: "o", TTL: time.Minute, Lost: func(error) {}})
		if err == nil {
			_, err = c.Try(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("six claims took %v", took)
	}
}
