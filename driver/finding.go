package driver

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// A Checker is a [Driver] that can report whether its engine is suitable for locks.
type Checker interface {
	// Check returns findings about the engine and its configuration, as far as locks depend on
	// them. It changes nothing, and reports nothing about individual locks. With an error it
	// returns the findings up to then.
	Check(ctx context.Context) ([]Finding, error)
	// Rehearse takes, renews and releases a lock on a random name, to find out whether this
	// client may. It disturbs no other locks. Anything that it leaves behind soon expires.
	// ErrNotYet means that the client has the rights, but the engine cannot grant locks yet.
	// ErrUnsupported means that a rehearsal is impossible.
	Rehearse(ctx context.Context) error
}

// A Finding is one result of a [Checker].
type Finding struct {
	About  string // what was checked: see the constants
	Where  string // which server, if there may be several; "": the only one, or all
	Level  Level  // how bad it is
	Text   string // the state found, and its consequences
	Advice string // what to do about it; "": nothing
}

// Values of Finding.About.
const (
	AboutVersion     = "version"     // version of the server
	AboutServer      = "server"      // whether one of several servers responds
	AboutPersistence = "persistence" // what a restart or crash of the server loses
	AboutEviction    = "eviction"    // whether the server drops keys when it is full
	AboutReplicas    = "replicas"    // what a failover loses
	AboutQuorum      = "quorum"      // how many servers may fail
	AboutIsolation   = "isolation"   // isolation of transactions
	AboutSpace       = "space"       // space for data
	AboutFile        = "file"        // file of the store
	AboutWaking      = "waking"      // whether waiters are notified
	AboutClock       = "clock"       // how far the server's clock is from ours
)

// A Level is the severity of a [Finding].
type Level uint8

const (
	Fine  Level = iota // as it should be
	Weak               // locks work, but promise less, cost more or are in danger of ceasing to
	Unfit              // locks do not work
)

// String returns the level as a word for people.
func (l Level) String() string { return [...]string{"ok", "warning", "error"}[min(l, Unfit)] }

// String returns the finding in one line.
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

// QuorumFinding reports how many of the given members may fail while more than half must agree.
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

// MostApart is the clock difference above which [ClockFinding] warns. No lock depends on the
// difference. But a clock that far off is not kept in time, and setting it makes leases end
// early or late. NTP itself steps a clock that is off by more than 128 ms, and synchronised
// machines are well within that.
const MostApart = 2 * time.Second

// ClockFinding compares a server's clock, which was read between two instants of ours.
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
