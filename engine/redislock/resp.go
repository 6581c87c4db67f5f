package redislock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// What a server may answer at most. It is far above what the scripts say, and bounds what a wrong
// byte can make of a length.
const (
	maxReply = 64 << 20 // bytes, and 16 for each value
	maxDepth = 8        // lists in lists
	maxLine  = 64 << 10
	oneValue = 16
)

var errProtocol = errors.New("redislock: this is not Redis' protocol (RESP2)")

// A reply is one answer of the server.
type reply struct {
	kind   byte // '+', '-', ':', '$' or '*', as on the wire; '_': nothing
	number int64
	text   string
	list   []any // int64, string, refusal, nil or []any
}

// err is what the server refused with, nil if it did not.
func (r *reply) err() error {
	if r.kind == '-' {
		return refusal(r.text)
	}
	return nil
}

// integer is a reply that must be a number.
func (r *reply) integer(of string) (int64, error) {
	if r.kind != ':' {
		return 0, fmt.Errorf("redislock: alien reply to %s", of)
	}
	return r.number, nil
}

// slice is a reply that must be a list of n values and more.
func (r *reply) slice(n int) ([]any, error) {
	if r.kind != '*' || len(r.list) < n {
		return nil, alienReply(r.list)
	}
	return r.list, nil
}

// integers is a reply that must be a list of n numbers.
func (r *reply) integers(n int) ([]int64, error) {
	if r.kind != '*' || len(r.list) != n {
		return nil, alienReply(r.list)
	}
	all := make([]int64, n)
	for i, v := range r.list {
		one, ok := v.(int64)
		if !ok {
			return nil, alienReply(r.list)
		}
		all[i] = one
	}
	return all, nil
}

// value is how a list has r.
func (r *reply) value() any {
	switch r.kind {
	case ':':
		return r.number
	case '-':
		return refusal(r.text)
	case '*':
		return r.list
	case '_':
		return nil
	}
	return r.text
}

// readReply reads one reply whole, whatever bytes come.
func readReply(from *bufio.Reader) (reply, error) {
	left := maxReply
	return readValue(from, &left, maxDepth)
}

func readValue(from *bufio.Reader, left *int, depth int) (reply, error) {
	line, err := readLine(from)
	if err != nil {
		return reply{}, err
	}
	if *left -= oneValue + len(line); *left < 0 || len(line) == 0 {
		return reply{}, errProtocol
	}
	r := reply{kind: line[0]}
	switch r.kind {
	case '+', '-':
		r.text = string(line[1:])
		return r, nil
	case ':':
		r.number, err = strconv.ParseInt(string(line[1:]), 10, 64)
	case '$', '*':
		var n int
		if n, err = strconv.Atoi(string(line[1:])); err == nil {
			return readSized(from, r.kind, n, left, depth)
		}
	default:
		err = errProtocol
	}
	if err != nil {
		return reply{}, errProtocol
	}
	return r, nil
}

// readSized reads what has its length before it: -1 is nothing.
func readSized(from *bufio.Reader, kind byte, n int, left *int, depth int) (reply, error) {
	switch {
	case n == -1:
		return reply{kind: '_'}, nil
	case n < 0 || n > *left || depth == 0:
		return reply{}, errProtocol
	case kind == '*':
		return readList(from, n, left, depth)
	}
	*left -= n
	text, err := readText(from, n)
	return reply{kind: '$', text: text}, err
}

func readList(from *bufio.Reader, n int, left *int, depth int) (reply, error) {
	list := make([]any, 0, min(n, 1024)) // n may be wrong
	for range n {
		one, err := readValue(from, left, depth-1)
		if err != nil {
			return reply{}, err
		}
		list = append(list, one.value())
	}
	return reply{kind: '*', list: list}, nil
}

// readText reads n bytes and the end of the line.
func readText(from *bufio.Reader, n int) (string, error) {
	const step = 64 << 10
	var text []byte
	for len(text) < n+2 { // n may be wrong
		start := len(text)
		text = append(text, make([]byte, min(n+2-start, step))...)
		if _, err := io.ReadFull(from, text[start:]); err != nil {
			return "", err
		}
	}
	if string(text[n:]) != "\r\n" {
		return "", errProtocol
	}
	return string(text[:n]), nil
}

// readLine reads a line without its end. It is good until the next read.
func readLine(from *bufio.Reader) ([]byte, error) {
	line, err := from.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		line, err = readLong(from, line)
	}
	if err != nil {
		return nil, err
	}
	if len(line) < 2 || line[len(line)-2] != '\r' {
		return nil, errProtocol
	}
	return line[:len(line)-2], nil
}

func readLong(from *bufio.Reader, line []byte) ([]byte, error) {
	long := append([]byte(nil), line...)
	for len(long) <= maxLine {
		line, err := from.ReadSlice('\n')
		long = append(long, line...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return long, err
		}
	}
	return nil, errProtocol
}

// appendText appends one word of a command.
func appendText[T string | []byte](b []byte, word T) []byte {
	b = appendSize(b, '$', len(word))
	b = append(b, word...)
	return append(b, "\r\n"...)
}

func appendNumber(b []byte, n int64) []byte {
	var digits [20]byte
	return appendText(b, strconv.AppendInt(digits[:0], n, 10))
}

func appendSize(b []byte, kind byte, n int) []byte {
	b = strconv.AppendInt(append(b, kind), int64(n), 10)
	return append(b, "\r\n"...)
}
