// Package guardian keeps a command from outliving its lease.
//
// The command is the child of a guardian, a small process beside the holder, which is the process
// that renews the lease. The holder writes each new deadline into memory that both share. The
// guardian ends the command, with everything it started, before the last deadline written there. So
// the command is dead in time even if the holder is killed, stopped, or cut off from the engine. If
// the guardian dies, the holder ends the command. They exchange everything else over a socket.
//
//	holder ── socket ── guardian ── child and all its descendants
//
// If the holder has died and nothing of the command is left, the guardian releases the lease in its
// place. So the next holder need not wait for the deadline. A holder that is only stopped keeps its
// end of the socket, and the guardian waits for its messages.
//
// A guardian that is stopped reports no end, and the lease would be renewed for ever. So the holder
// pings it. If it does not answer, the holder resumes it, or takes its place once the command has
// ended; see watchdog.go. A healthy command keeps running meanwhile.
//
// Deadlines are instants of one clock that all processes of the machine share and nothing sets. On
// Linux it is CLOCK_BOOTTIME, which advances while the machine sleeps. When the machine resumes,
// the guardian wakes.
//
// On Linux both processes are child subreapers: they inherit descendants whose parent dies. So
// neither a double fork nor setsid escapes them. On other systems only the child's process group is
// ended. Processes that another service starts on request, such as systemd-run, at or a container
// engine, are out of reach everywhere. So are processes of a user whom the guardian may not
// signal.
//
// If guardian and holder are stopped or killed at the same moment, only the fencing token protects
// the resource. Their process names differ, so that killing one by name spares the other.
package guardian

import "time"

// Name is the name of the guardian process and, on Linux, the beginning of its command line. It is
// not part of the holder's name, so killing the holder by name spares the guardian. It has at most
// 15 bytes, or the kernel cuts it.
const Name = "lock-guardian"

// Margin is how long before the deadline the command must get SIGKILL: 2 % of the TTL, and at least
// 50 ms. It covers three delays. A timer fires late on a busy machine, the walk through the process
// table takes 10 ms for a thousand processes, and the kernel needs time to end them.
func Margin(ttl time.Duration) time.Duration {
	return max(ttl/50, 50*time.Millisecond)
}
