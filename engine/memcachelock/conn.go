package memcachelock

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/links"
)

const (
	// grace is how much longer than its context a call may wait for an answer. A known outcome
	// needs no clean-up.
	grace = 20 * time.Millisecond
	// checkIdle is the time without use after which a connection is checked before the next call.
	// If the server has ended it, the call would not arrive.
	checkIdle = time.Second
	// A command that took longer than slow may have waited for a server that was stopped, for
	// example while its machine was moved. The server's clock was stopped too, and catches up only
	// after it has served commands. An item stored in between lives shorter by that time, perhaps
	// not at all. tick is how long to wait for the clock.
	slow, tick = 100 * time.Millisecond, 20 * time.Millisecond
)

// expired is the life of an item that expires as soon as it is stored.
const expired time.Duration = -1

// A conn is one connection to a server. One call uses it at a time.
type conn struct {
	net.Conn
	in      *bufio.Reader
	command []byte // the last command; its buffer is reused
	used    time.Time
	slow    bool // the last command was slow: the server may have been stopped
	broken  bool // the position of the next answer is unknown
}

func dial(ctx context.Context, dial dialFunc, address string) (*conn, error) {
	nc, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreached, err)
	}
	return &conn{Conn: nc, in: bufio.NewReader(nc)}, nil
}

// end makes the call that uses the connection end soon.
func (c *conn) end() {
	_ = c.SetDeadline(time.Now().Add(grace)) // on a closed connection it need not work
}

// alive reports whether the server has kept the connection open.
func (c *conn) alive() bool {
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Microsecond)) // if it fails, so does the read
	_, err := c.in.Peek(1)
	return errors.Is(err, os.ErrDeadlineExceeded) && c.SetReadDeadline(time.Time{}) == nil
}

// close closes the connection and discards data that has not reached the server. Otherwise the
// kernel would go on sending it for minutes, longer than a bar lasts.
func (c *conn) close() {
	links.Discard(c.Conn)
	_ = c.Close()
}

// ask sends a command. It returns when answer has read the reply, and after a slow command when the
// server's clock is right again.
func (c *conn) ask(command []byte, answer func() error) error {
	start := time.Now()
	c.command = command
	_, err := c.Write(command)
	if err == nil {
		err = answer()
	}
	if c.slow = time.Since(start) > slow; c.slow {
		time.Sleep(tick)
	}
	c.broken = err != nil && !errors.Is(err, errRefused)
	return err
}

// line reads a line of an answer.
func (c *conn) line() (string, error) {
	line, err := c.in.ReadSlice('\n')
	return strings.TrimRight(string(line), "\r\n"), err
}

// store sends a command that stores an item for life. errRefused means that the server found
// another item than the command requires.
func (c *conn) store(verb, key string, value []byte, life time.Duration, version uint64) error {
	command := append(c.command[:0], verb+" "+key+" 0 "...)
	command = strconv.AppendInt(command, seconds(life), 10)
	command = strconv.AppendInt(append(command, ' '), int64(len(value)), 10)
	if verb == "cas" {
		command = strconv.AppendUint(append(command, ' '), version, 10)
	}
	command = append(append(append(command, "\r\n"...), value...), "\r\n"...)
	return c.ask(command, func() error {
		line, err := c.line()
		switch {
		case err != nil:
			return err
		case line == "STORED":
			return nil
		case line == "NOT_STORED", line == "EXISTS", line == "NOT_FOUND":
			return errRefused
		}
		return answerError(line)
	})
}

// seconds returns a life as memcached takes it, where a negative number means expired.
func seconds(life time.Duration) int64 {
	if life == expired {
		return -1
	}
	return int64((life + time.Second - 1) / time.Second)
}

// An item is what a server has for a key.
type item struct {
	value   []byte // nil: there is no item
	version uint64 // 0: there is no item, or the server keeps no versions
}

// gets reads the items of keys into found. It leaves elements without an item unchanged.
func (c *conn) gets(keys []string, found []item) error {
	return c.ask(append(c.command[:0], "gets "+strings.Join(keys, " ")+"\r\n"...), func() error {
		for {
			line, err := c.line()
			switch {
			case err != nil:
				return err
			case line == "END":
				return nil
			}
			key, size, version, ok := header(line)
			if !ok {
				return answerError(line)
			}
			it := item{version: version}
			if it.value, err = c.value(size); err != nil {
				return err
			}
			if i := slices.Index(keys, key); i >= 0 {
				found[i] = it
			}
		}
	})
}

// header parses the line before an item: "VALUE key flags size version".
func header(line string) (key string, size int64, version uint64, ok bool) {
	words := strings.Split(line, " ")
	if len(words) != 5 || words[0] != "VALUE" {
		return "", 0, 0, false
	}
	bytes, err1 := strconv.ParseUint(words[3], 10, 31)
	version, err2 := strconv.ParseUint(words[4], 10, 64)
	return words[1], int64(bytes), version, err1 == nil && err2 == nil
}

// value reads size bytes and the end of the line.
func (c *conn) value(size int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(c.in, size+2)) // allocates only what has arrived, because a server may claim any size
	if err == nil && (int64(len(b)) < size+2 || !bytes.HasSuffix(b, []byte("\r\n"))) {
		err = io.ErrUnexpectedEOF
	}
	return b[:max(0, len(b)-2)], err
}
