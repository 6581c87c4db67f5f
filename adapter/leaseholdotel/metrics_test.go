package leaseholdotel

import (
	"testing"

	"github.com/leasehold-go/leasehold"
)

// A function may cut a name inside a character. Exporters refuse all metrics for such a value.
func TestLockAttributeIsUTF8(t *testing.T) {
	m := metrics{lock: func(name string) string { return name[:2] }}
	set := m.set(leasehold.Event{Name: "aé"})
	if v, _ := set.Value("leasehold.lock"); v.AsString() != "a\uFFFD" {
		t.Errorf("%q", v.AsString())
	}
}
