// Package guardian keeps a command from outliving the lease it runs under.
//
// The command is the child of a guardian, a small process beside the holder (the process
// that renews the lease). The holder writes each new deadline into memory that both share;
// the guardian ends the command, with everything it started, before the last deadline
// written there. So the command is dead in time when the holder is killed, stopped, or cut
// off from the engine. The holder in turn ends the command when the guardian dies.
// All else they say to each other through a socket.
//
//	holder ── socket ── guardian ── child and all its descendants
//
// When the holder has died and nothing of the command is left, the guardian gives up the
// lease in its place, so that the next one need not wait for the deadline. A holder that is
// merely stopped is not dead: it keeps its end of the socket, and the guardian waits for its
// word.
//
// A guardian that is stopped reports no end, and the lease would be renewed for ever. So the
// holder pings it. If it is silent, the holder resumes it, or takes its place once the command
// has ended; see watchdog.go. A healthy command goes on meanwhile.
//
// Deadlines are instants of one clock for all processes of the machine, which nothing sets: on
// Linux CLOCK_BOOTTIME, which goes on while the machine sleeps. A resume wakes the guardian.
//
// On Linux both processes are child subreapers: a descendant whose parent dies becomes
// theirs, so that neither a double fork nor setsid leads out of their reach. Elsewhere
// only the child's process group is ended. Out of reach everywhere: what another service
// runs on request (systemd-run, at, a container engine), and what runs as a user whom the
// guardian may not signal. A guardian and a holder that are stopped or killed at the same
// moment leave the rest to the fencing token; so that nobody does that by a name, the
// guardian has another one.
package guardian

import "time"

// Name is the name of the guardian process and all that its command line begins with, on
// Linux. It is no part of the holder's: who kills that by name spares the guardian. At most
// 15 bytes, or the kernel cuts it.
const Name = "lock-guardian"

// Margin is how long before the deadline the command must have got its SIGKILL: 2 % of
// the TTL, at least 50 ms. It covers the late wake of a timer on a busy machine, the walk
// through the process table (10 ms for a thousand processes) and the kernel's teardown.
func Margin(ttl time.Duration) time.Duration {
	return max(ttl/50, 50*time.Millisecond)
}
