package caslock_test

import (
	"errors"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// What is damaged, or of a newer version, is told and left alone, and hides nothing else.
func TestDamagedRecords(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &hashed{}
		d := process(t, store)
		claimtest.Granted(t, claimOf(t, d, driver.Request{Resource: "sound", Owner: "a"}))
		for name, value := range map[string]string{
			"newer": `{"v":3,"nonce":"x"}`, "damaged": `{"v":1,"nonce":"x","claims":[{"stat`, "alien": "hello", "no nonce": `{"v":1}`, "blank": `{"v":1,"nonce":" "}`,
			"senseless": `{"v":1,"nonce":"x","claims":[{"owner":"a","status":1,"fence":7,"ttl":1,"beat":1,"since":0}]}`,
		} {
			if _, err := store.Write(t.Context(), name, []byte(value), "", 0); err != nil {
				t.Fatal(err)
			}
			c := claimOf(t, d, driver.Request{Resource: name, Owner: "a"})
			_, tried := c.Try(t.Context())
			_, renewed := c.Renew(t.Context(), ttl)
			for what, err := range map[string]error{"Try": tried, "Renew": renewed, "Release": c.Release(t.Context(), driver.End{})} {
				if !errors.Is(err, driver.ErrCorrupt) {
					t.Errorf("%s of %s: %v; want ErrCorrupt", what, name, err)
				}
			}
			if i, _ := store.Read(t.Context(), name); string(i.Value) != value {
				t.Errorf("%s was changed", name)
			}
		}
		states, _, err := d.(driver.Operator).List(t.Context(), "", "", 100)
		if len(states) != 1 || states[0].Resource != "sound" || !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("List: %v, %v; want one and ErrCorrupt", states, err)
		}
	})
}
