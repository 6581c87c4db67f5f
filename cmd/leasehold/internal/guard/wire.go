//go:build unix

package guard

import (
	"bufio"
	"fmt"
	"os"
	"syscall"
)

// verb says what a message is about.
type verb string

// Messages of the holder.
const (
	toDeadline verb = "deadline" // n: the instant; the first one starts the child
	toSignal   verb = "signal"   // n: for the child's process group
	toStop     verb = "stop"     // the lease is lost: end the child
	toResume   verb = "resume"   // the holder runs again after a suspension
)

// Messages of the guardian. After exit, failed and late nothing of the child is left.
const (
	gotStarted verb = "started" // n: pid
	gotStopped verb = "stopped" // the terminal suspended the child
	gotExit    verb = "exit"    // n: wait status; cut: the guardian ended it
	gotFailed  verb = "failed"  // n: exit code as a shell's; text
	gotLate    verb = "late"    // the deadline was too near: never started
)

type message struct {
	verb verb
	n    int64
	cut  bool
	text string
}

// A conn carries messages, one per line.
type conn struct{ file *os.File }

// newConn takes over fd, one end of a socketpair, and keeps it from programs that are
// started later.
func newConn(fd int) (*conn, error) {
	syscall.CloseOnExec(fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &conn{os.NewFile(uintptr(fd), "guard")}, nil
}

// send never blocks: a message to a peer that is gone, or that has been stopped for so
// long that the socket is full, is dropped. A guardian that misses deadlines acts
// earlier, not later.
func (c *conn) send(m message) {
	line := fmt.Appendf(nil, "%s %d %t %q\n", m.verb, m.n, m.cut, m.text)
	raw, err := c.file.SyscallConn()
	if err != nil {
		return
	}
	raw.Write(func(fd uintptr) bool {
		syscall.Write(int(fd), line)
		return true
	})
}

// receive returns the peer's messages; the channel is closed when the peer is gone.
func (c *conn) receive() <-chan message {
	messages := make(chan message)
	go func() {
		defer close(messages)
		lines := bufio.NewScanner(c.file)
		for lines.Scan() {
			if m, ok := parse(lines.Text()); ok {
				messages <- m
			}
		}
	}()
	return messages
}

func parse(line string) (m message, ok bool) {
	n, err := fmt.Sscanf(line, "%s %d %t %q", &m.verb, &m.n, &m.cut, &m.text)
	return m, err == nil && n == 4
}
