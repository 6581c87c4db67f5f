package servers

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// askMySQL runs statements as the user root, who needs no password, and returns the last value
// of the first row of the last one. As askPostgres it speaks the protocol by itself.
func askMySQL(addr string, statements ...string) (answer string, err error) {
	conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return "", err
	}
	c := &mysqlConn{Writer: conn, from: bufio.NewReader(conn)}
	if err := c.begin("root"); err != nil {
		return "", err
	}
	for _, s := range statements {
		if answer, err = c.ask(s); err != nil {
			return "", fmt.Errorf("%s: %w", s, err)
		}
	}
	return answer, nil
}

type mysqlConn struct {
	io.Writer
	from *bufio.Reader
	next byte // number of the next packet
}

// First bytes of what the server answers.
const mysqlOK, mysqlNull, mysqlEnd, mysqlFailed = 0x00, 0xfb, 0xfe, 0xff

// begin logs in without a password.
func (c *mysqlConn) begin(user string) error {
	if _, err := c.read(); err != nil { // the greeting
		return err
	}
	const ability = 1 | 1<<9 | 1<<13 | 1<<15 | 1<<19 // long flags, protocol 4.1, transactions, its passwords, plugins
	hello := binary.LittleEndian.AppendUint32(nil, ability)
	hello = binary.LittleEndian.AppendUint32(hello, 1<<24)
	hello = append(hello, 45) // utf8mb4
	hello = append(hello, make([]byte, 23)...)
	hello = append(hello, user+"\x00\x00caching_sha2_password\x00"...)
	for reply := hello; ; reply = nil {
		if err := c.write(reply); err != nil {
			return err
		}
		answer, err := c.read()
		if err != nil || answer[0] == mysqlOK {
			return err
		}
		if answer[0] != mysqlEnd { // asked to show the same nothing in another way
			return fmt.Errorf("it wants a password: %q", answer)
		}
	}
}

func (c *mysqlConn) ask(statement string) (string, error) {
	const query = "\x03"
	c.next = 0
	if err := c.write([]byte(query + statement)); err != nil {
		return "", err
	}
	columns, err := c.read()
	if err != nil || columns[0] == mysqlOK {
		return "", err
	}
	if err := c.skip(); err != nil { // what the columns are
		return "", err
	}
	row, err := c.read()
	if err != nil || isEnd(row) {
		return "", err
	}
	return lastValue(row), c.skip()
}

// skip reads until an end.
func (c *mysqlConn) skip() error {
	for {
		if p, err := c.read(); err != nil || isEnd(p) {
			return err
		}
	}
}

func isEnd(packet []byte) bool { return packet[0] == mysqlEnd && len(packet) < 9 }

// lastValue is that of a row, "" for NULL.
func lastValue(row []byte) (value string) {
	for len(row) > 0 {
		n, size := uint64(row[0]), 1
		switch {
		case n == mysqlNull:
			n = 0
		case n > mysqlNull: // the length follows, in 2, 3 or 8 bytes
			size = 1 + []int{2, 3, 8}[n-0xfc]
			var b [8]byte
			copy(b[:], row[1:size])
			n = binary.LittleEndian.Uint64(b[:])
		}
		value, row = string(row[size:size+int(n)]), row[size+int(n):]
	}
	return value
}

func (c *mysqlConn) write(payload []byte) error {
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(payload))|uint32(c.next)<<24)
	c.next++
	_, err := c.Write(append(head, payload...))
	return err
}

// read returns the next packet, which has at least one byte, or the error that it tells.
func (c *mysqlConn) read() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(c.from, head[:]); err != nil {
		return nil, err
	}
	c.next = head[3] + 1
	payload := make([]byte, binary.LittleEndian.Uint32(head[:])&(1<<24-1))
	if _, err := io.ReadFull(c.from, payload); err != nil {
		return nil, err
	}
	if len(payload) == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	if payload[0] == mysqlFailed {
		return nil, mysqlError(payload)
	}
	return payload, nil
}

func mysqlError(packet []byte) error {
	number, text := binary.LittleEndian.Uint16(packet[1:]), string(packet[3:])
	if len(text) > 6 && text[0] == '#' {
		return fmt.Errorf("error %d (%s): %s", number, text[1:6], text[6:])
	}
	return fmt.Errorf("error %d: %s", number, text)
}
