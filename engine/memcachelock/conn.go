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
	// grace is how much longer than its context a call may wait for an answer that is on
	// its way: an outcome that is known leaves nothing behind.
	grace = 20 * time.Millisecond
	// checkIdle is after how long without use a connection is looked at before it is used:
	// the server may have ended it, and then nothing of the call gets there.
	checkIdle = time.Second
	// A command that took slow may have waited for a server that stood still, as one does
	// whose machine is moved. Its clock stood too, and goes on a moment later than the
	// commands: what was stored in between lasts less by as long as the server stood, which
	// may be nothing.
	slow, tick = 100 * time.Millisecond, 20 * time.Millisecond
)

// expired is the life of an item that is over when it is stored.
const expired time.Duration = -1

// A conn is one connection to a server. One call uses it at a time.
type conn struct {
	net.Conn
	in      *bufio.Reader
	command []byte // the last one; its room is the next one's
	used    time.Time
	slow    bool // the last command was: the server may have stood still
	broken  bool // where the next answer begins is not known
}

func dial(ctx context.Context, dial dialFunc, address string) (*conn, error) {
	nc, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreached, err)
	}
	return &conn{Conn: nc, in: bufio.NewReader(nc)}, nil
}

// end has the call that uses the connection end soon.
func (c *conn) end() {
	_ = c.SetDeadline(time.Now().Add(grace)) // a connection that is closed waits for nothing
}

// alive reports whether the server has not ended the connection.
func (c *conn) alive() bool {
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Microsecond)) // its failure shows in the read
	_, err := c.in.Peek(1)
	return errors.Is(err, os.ErrDeadlineExceeded) && c.SetReadDeadline(time.Time{}) == nil
}

// close discards what has not got to the server: the kernel would go on sending it for
// minutes, longer than a bar lasts.
func (c *conn) close() {
	links.Discard(c.Conn)
	_ = c.Close()
}

// ask sends a command, and returns when answer has read what the server says and its clock
// goes again.
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

// store makes a command that stores an item for life. errRefused: the server has compared, and
// found another item than the command is for.
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

// seconds is a life as memcached is told, where a negative number has expired.
func seconds(life time.Duration) int64 {
	if life == expired {
		return -1
	}
	return int64((life + time.Second - 1) / time.Second)
}

// An item is what a server has for a key.
type item struct {
	value   []byte
	version uint64 // 0: there is none
	missing bool   // and was before gets
}

// gets reads the items of keys into found, which stay as they are where there is none.
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

// header reads the line before an item: "VALUE key flags size version".
func header(line string) (key string, size int64, version uint64, ok bool) {
	words := strings.Split(line, " ")
	if len(words) != 5 || words[0] != "VALUE" {
		return "", 0, 0, false
	}
	bytes, err1 := strconv.ParseUint(words[3], 10, 31)
	version, err2 := strconv.ParseUint(words[4], 10, 64)
	return words[1], int64(bytes), version, err1 == nil && err2 == nil
}

// value reads that many bytes and the line's end behind them.
func (c *conn) value(size int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(c.in, size+2)) // not made before it has come: a server may say anything
	if err == nil && (int64(len(b)) < size+2 || !bytes.HasSuffix(b, []byte("\r\n"))) {
		err = io.ErrUnexpectedEOF
	}
	return b[:max(0, len(b)-2)], err
}
