package driver

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// A Checker is a [Driver] that can tell whether its engine is fit for locks.
type Checker interface {
	// Check tells what the engine is, and how that is set up, as far as locks depend on it. It
	// changes nothing, and tells of nobody's locks. What it has found stands beside an error too,
	// which is why it found no more.
	Check(ctx context.Context) ([]Finding, error)
	// Rehearse finds out whether this client may and can take, renew and release a lock, on a
	// name that nobody else knows. It disturbs no lock of others, and leaves nothing behind that
	// does not end by itself soon. ErrNotYet: it may, and will be able to. ErrUnsupported: it
	// cannot be tried.
	Rehearse(ctx context.Context) error
}

// A Finding is one thing that a [Checker] has looked at.
type Finding struct {
	About  string // what was looked at: see the constants
	Where  string // which server, where there may be several; "": the only one, or all
	Level  Level  // how bad it is
	Text   string // how it is, and what follows from that
	Advice string // what to do about it; "": nothing
}

// What a [Finding] is about.
const (
	AboutVersion     = "version"     // of the server
	AboutServer      = "server"      // whether one of several serves
	AboutPersistence = "persistence" // what a restart or a crash of the server forgets
	AboutEviction    = "eviction"    // whether the server drops what it has no room for
	AboutReplicas    = "replicas"    // what a failover forgets
	AboutQuorum      = "quorum"      // how many servers may fail
	AboutIsolation   = "isolation"   // of transactions
	AboutSpace       = "space"       // for what is written
	AboutFile        = "file"        // of the store
	AboutWaking      = "waking"      // whether waiters are woken
	AboutClock       = "clock"       // how far the server's is from ours
)

// A Level says how bad a [Finding] is.
type Level uint8

const (
	Fine  Level = iota // as it should be
	Weak               // locks work, but promise less, cost more or are in danger of ceasing to
	Unfit              // locks do not work
)

// String is the word that people are shown.
func (l Level) String() string { return [...]string{"ok", "warning", "error"}[min(l, Unfit)] }

// String is the finding in one line.
func (f Finding) String() string {
	var b strings.Builder
	if f.Where != "" {
		b.WriteString(f.Where + ": ")
	}
	b.WriteString(f.Text)
	if f.Advice != "" {
		b.WriteString("; " + f.Advice)
	}
	return b.String()
}

// QuorumFinding tells how many of members may fail, where more than half must agree.
func QuorumFinding(where string, members int) Finding {
	f := Finding{About: AboutQuorum, Where: where}
	may := (members - 1) / 2
	switch {
	case members < 2:
		f.Level, f.Advice = Weak, "let it have three members"
		f.Text = "one member: there are no locks while it is away, and with its disk all is lost"
	case members%2 == 0:
		f.Level, f.Advice = Weak, "add one or take one away"
		f.Text = fmt.Sprintf("%d members, of which %d may fail, as of %d", members, may, members-1)
	default:
		f.Text = fmt.Sprintf("%d members, of which %d may fail", members, may)
	}
	return f
}

// MostApart is by how much a server's clock may differ from ours before [ClockFinding] warns. No lock
// depends on the difference: a clock that far off is not kept right, and whoever sets it right ends
// leases early, or late. Source: NTP itself steps what is off by more than 128 ms, and machines
// that keep time are within a small part of that.
const MostApart = 2 * time.Second

// ClockFinding compares a server's clock, which was asked between two instants of ours.
func ClockFinding(where string, before, server, after time.Time) Finding {
	took := after.Sub(before)
	apart := server.Sub(before.Add(took / 2))
	unsure := (took/2 + time.Millisecond).Round(time.Millisecond)
	f := Finding{About: AboutClock, Where: where}
	if apart.Abs() <= MostApart+unsure {
		f.Text = fmt.Sprintf("the server's clock is within %v of ours", (apart.Abs() + unsure).Round(time.Millisecond))
		return f
	}
	direction := "ahead of"
	if apart < 0 {
		direction = "behind"
	}
	f.Level = Weak
	f.Text = fmt.Sprintf("the server's clock is %v %s ours: leases end by it, and end early or late when it is set", apart.Abs().Round(time.Millisecond), direction)
	f.Advice = "let both machines keep time (NTP)"
	return f
}
