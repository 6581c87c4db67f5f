package linear

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

func TestMemoryIsLinearizable(t *testing.T) {
	server := memory.NewServer()
	Check(t, func(testing.TB) driver.Driver { return server.Connect() })
}

// The checker must be able to say no.
func TestCheckerRejectsTwoHoldersAndOldTokens(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	for name, ops := range map[string][]struct {
		op   lockOp
		call int
		back int
	}{
		"two holders": {{lockOp{"acquire", "a", 1, limit}, 0, 1}, {lockOp{"acquire", "b", 2, limit}, 2, 3}, {lockOp{"release", "a", 1, limit}, 4, 5}},
		"old token":   {{lockOp{"acquire", "a", 2, limit}, 0, 1}, {lockOp{"release", "a", 2, limit}, 2, 3}, {lockOp{"acquire", "b", 1, limit}, 4, 5}},
		"too much":    {{lockOp{"acquire", "a", 1, 1}, 0, 1}, {lockOp{"acquire", "b", 2, 3}, 2, 3}, {lockOp{"acquire", "c", 3, 1}, 4, 5}, {lockOp{"release", "a", 1, 1}, 6, 7}},
	} {
		r := register{start: at(0)}
		for i, o := range ops {
			r.add(i, o.op, at(o.call), at(o.back))
		}
		if porcupine.CheckOperations(leaseModel(true), r.ops) {
			t.Errorf("%s: accepted", name)
		}
		if accepted := porcupine.CheckOperations(leaseModel(false), r.ops); accepted != (name == "old token") {
			t.Errorf("%s, without fencing: accepted %v", name, accepted)
		}
	}
}
