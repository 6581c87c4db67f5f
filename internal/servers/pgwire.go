package servers

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// askPostgres runs statements as the user postgres, who needs no password, and returns the
// first value that one of them returned last. It speaks the protocol by itself: modules that
// start servers are to require no client for it.
func askPostgres(addr string, statements ...string) (answer string, err error) {
	conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	c := pgConn{conn, bufio.NewReader(conn)}
	const version3 = "\x00\x03\x00\x00"
	if _, err := c.ask("", version3+"user\x00postgres\x00database\x00postgres\x00\x00"); err != nil {
		return "", err
	}
	for _, s := range statements {
		rows, err := c.ask("Q", s+"\x00")
		if err != nil {
			return "", fmt.Errorf("%s: %w", s, err)
		}
		if len(rows) > 0 {
			answer = rows[0]
		}
	}
	return answer, nil
}

type pgConn struct {
	io.Writer
	from *bufio.Reader
}

// ask sends a message and returns the first values of the rows of the last result.
func (c pgConn) ask(kind, body string) (rows []string, err error) {
	if _, err := fmt.Fprintf(c, "%s%s%s", kind, binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body); err != nil {
		return nil, err
	}
	var failed error
	for {
		kind, body, err := c.read()
		if err != nil {
			return nil, errors.Join(failed, err)
		}
		switch kind {
		case 'R':
			if binary.BigEndian.Uint32(body) != 0 {
				return nil, errors.New("it wants a password")
			}
		case 'T': // what follows are the rows of another result
			rows = nil
		case 'D':
			rows = append(rows, firstValue(body))
		case 'E':
			failed = pgError(body)
		case 'Z': // it waits for the next message
			return rows, failed
		}
	}
}

func (c pgConn) read() (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(c.from, head[:]); err != nil {
		return 0, nil, err
	}
	body = make([]byte, binary.BigEndian.Uint32(head[1:])-4)
	_, err = io.ReadFull(c.from, body)
	return head[0], body, err
}

// firstValue is that of a row, "" for none or NULL.
func firstValue(row []byte) string {
	if binary.BigEndian.Uint16(row) == 0 {
		return ""
	}
	n := int32(binary.BigEndian.Uint32(row[2:]))
	return string(row[6 : 6+max(n, 0)])
}

func pgError(body []byte) error {
	fields := map[byte]string{}
	for field := range strings.SplitSeq(string(body), "\x00") {
		if field != "" {
			fields[field[0]] = field[1:]
		}
	}
	return fmt.Errorf("%s: %s (SQLSTATE %s)", fields['S'], fields['M'], fields['C'])
}
