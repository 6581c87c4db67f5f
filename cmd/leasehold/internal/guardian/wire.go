//go:build unix

package guardian

import (
	"bufio"
	"encoding/json"
	"os"
	"syscall"
	"time"
)

// A verb says what a message is about.
type verb string

// Messages from the holder.
const (
	toStart  verb = "start"  // Start; the first message
	toSignal verb = "signal" // N: for the child's process group
	toYield  verb = "yield"  // N: signal for the child alone, once it catches it
	toStop   verb = "stop"   // the lease is lost: end the child
	toResume verb = "resume" // the holder runs again after a suspension
	toPing   verb = "ping"   // answer with pong
)

// Messages from the guardian. After exit, failed and late, no process of the child is left.
const (
	gotStarting verb = "starting" // from now on the child may be running
	gotStarted  verb = "started"  // N: pid
	gotStopped  verb = "stopped"  // the terminal suspended the child
	gotPong     verb = "pong"     // the answer to a ping
	gotTold     verb = "told"     // the child received the signal of yield
	gotDeaf     verb = "deaf"     // the child does not catch the signal of yield yet
	gotEnded    verb = "ended"    // N, Cut: as in exit; processes that the child has left still have to be ended
	gotEnding   verb = "ending"   // the guardian begins to end the child, if Cut, or the processes in Text that the child has left
	gotRefused  verb = "refused"  // SIGKILL is refused by the processes in Text
	gotExit     verb = "exit"     // N: wait status; Cut: the guardian ended it; Lent: it had the terminal
	gotFailed   verb = "failed"   // N: exit code as a shell's; Text
	gotLate     verb = "late"     // the deadline was too near, so the child was not started
)

// A message is one line on the socket. The comment on its verb says which fields are set.
type message struct {
	Verb  verb
	N     int64  `json:",omitempty"`
	Cut   bool   `json:",omitempty"`
	Lent  bool   `json:",omitempty"`
	Text  string `json:",omitempty"`
	Start *start `json:",omitempty"`
}

// A start has all that the guardian must know before it starts the child. It is sent through the
// socket, because other users can read a process's arguments.
type start struct {
	Path   []byte // need not be UTF-8
	Argv   texts
	Env    texts
	Grace  time.Duration
	Margin time.Duration
	Home   int     // of the terminal
	Lent   bool    // of the terminal
	Legacy string  // of the Plan
	Keep   instant // of the Plan
}

// texts are strings that need not be UTF-8. JSON strings must be.
type texts [][]byte

func newTexts(from []string) texts {
	to := make(texts, len(from))
	for i, text := range from {
		to[i] = []byte(text)
	}
	return to
}

func (from texts) strings() []string {
	to := make([]string, len(from))
	for i, text := range from {
		to[i] = string(text)
	}
	return to
}

// A conn carries messages, one per line.
type conn struct{ file *os.File }

// newConn takes ownership of fd, one end of a socketpair. Programs that are started later do not
// inherit it.
func newConn(fd int) (*conn, error) {
	syscall.CloseOnExec(fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &conn{os.NewFile(uintptr(fd), "guard")}, nil
}

// send never blocks. If the peer has died, or was stopped for so long that the socket is full, the
// message is dropped.
func (c *conn) send(m message) {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return
	}
	raw.Write(func(fd uintptr) bool {
		syscall.Write(int(fd), m.line())
		return true
	})
}

// sendWhole sends a message that may exceed the socket's buffer. It may take as long as bound.
func (c *conn) sendWhole(m message, bound time.Duration) error {
	c.file.SetWriteDeadline(time.Now().Add(bound))
	defer c.file.SetWriteDeadline(time.Time{})
	_, err := c.file.Write(m.line())
	return err
}

func (m message) line() []byte {
	line, err := json.Marshal(m)
	if err != nil {
		panic(err) // messages contain only types that JSON has
	}
	return append(line, '\n')
}

// receive returns the messages of the peer. The channel is closed when the peer has died.
func (c *conn) receive() <-chan message {
	messages := make(chan message)
	go func() {
		defer close(messages)
		for lines := bufio.NewReader(c.file); ; {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			var m message
			if json.Unmarshal(line, &m) == nil {
				messages <- m
			}
		}
	}()
	return messages
}
