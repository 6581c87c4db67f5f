package locktest

import (
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

// A Need is a set of requirements for a case.
type Need uint32

// What a case may need: declared by the driver's Features, provided by its optional interfaces,
// or offered by the Harness.
const (
	NeedFencing Need = 1 << iota
	NeedShared
	NeedFair
	NeedWakes
	NeedResumes
	NeedLingers
	NeedBars
	NeedNotes
	NeedRaises
	NeedTells
	NeedKeeps
	NeedWeights
	NeedLimits
	NeedOperator
	NeedLossNotice
	NeedTTLChange
	NeedShortening
	NeedPause
	NeedRestart
	NeedFlushState
	NeedAddress
	NeedHang
	NeedBatchRenewer
	NeedBatchTrier
	NeedForget
)

// needNames are in the order of the bits.
var needNames = []string{
	"Features.Fencing", "Features.Shared", "Features.Fair", "Features.Wakes", "Features.Resumes",
	"Features.Lingers", "Features.Bars", "Features.Notes", "Features.Raises", "Features.Tells",
	"Features.Keeps", "Features.Weights", "Features.Limits", "a driver.Operator",
	"notices of loss (Harness.NoLossNotice is set)",
	"renewals with another TTL (Harness.FixedTTL is set)",
	"renewals that shorten (Harness.NeverShortens is set)",
	"Harness.Pause", "Harness.Restart", "Harness.FlushState", "Harness.Address",
	"Harness.Hang", "a driver.BatchRenewer", "a driver.BatchTrier", "Harness.Forget",
}

// String lists the requirements in n, for the message of a skip.
func (n Need) String() string {
	var names []string
	for bit, name := range needNames {
		if n&(1<<bit) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " and ")
}

// offers returns what the driver declares and the harness can do.
func offers(t testing.TB, h Harness) Need {
	d := open(t, h)
	f := d.Features()
	_, operates := d.(driver.Operator)
	if f.Raises && !operates {
		t.Fatal("Features.Raises is declared, but the driver is no driver.Operator, which has RaiseFence")
	}
	if (f.Recalls || f.Keeps) && !f.Tells {
		t.Fatal("Features.Recalls or Features.Keeps is declared, but Features.Tells is not")
	}
	if f.Weights && !f.Shared || f.Limits && !(f.Shared && operates) {
		t.Fatal("Features.Weights or Features.Limits is declared without Features.Shared, or Limits without a driver.Operator, which has SetLimit")
	}
	_, batches := d.(driver.BatchRenewer)
	_, together := d.(driver.BatchTrier)
	var n Need
	for bit, has := range []bool{
		f.Fencing, f.Shared, f.Fair, f.Wakes, f.Resumes, f.Lingers, f.Bars, f.Notes, f.Raises, f.Tells, f.Keeps, f.Weights, f.Limits, operates,
		!h.NoLossNotice, !h.FixedTTL, !h.NeverShortens, h.Pause != nil, h.Restart != nil, h.FlushState != nil, h.Address != "",
		h.Hang != nil, batches, together, h.Forget != nil,
	} {
		if has {
			n |= 1 << bit
		}
	}
	return n
}
