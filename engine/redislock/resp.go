package redislock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Bounds of a reply. They are far above what the scripts return, and limit the damage of a wrong
// byte in a length.
const (
	maxReply = 64 << 20 // bytes, and 16 for each value
	maxDepth = 8        // lists in lists
	maxLine  = 8 << 10  // a length, a number or an error: what the reader buffers
	oneValue = 16
)

var errProtocol = errors.New("redislock: this is not Redis' protocol (RESP2)")

// An answer is a reply, with the number of replicas that have what was written before it.
type answer struct {
	reply        any // int64, string, nil or a list of those and of refusals ([]any)
	acknowledged int
}

// integer returns a reply that must be a number.
func (a answer) integer(of string) (int64, error) {
	n, ok := a.reply.(int64)
	if !ok {
		return 0, fmt.Errorf("redislock: alien reply to %s", of)
	}
	return n, nil
}

// slice returns a reply that must be a list of at least n values.
func (a answer) slice(n int) ([]any, error) {
	list, ok := a.reply.([]any)
	if !ok || len(list) < n {
		return nil, unexpectedReply(list)
	}
	return list, nil
}

// integers returns a reply that must be a list of at least n numbers.
func (a answer) integers(n int) ([]int64, error) {
	list, err := a.slice(n)
	if err != nil || len(list) > n {
		return nil, unexpectedReply(list)
	}
	all := make([]int64, n)
	for i, v := range list {
		one, ok := v.(int64)
		if !ok {
			return nil, unexpectedReply(list)
		}
		all[i] = one
	}
	return all, nil
}

// readReply reads one reply, whatever bytes come. The reply is an int64, a string, a refusal, nil,
// or a list of those.
func readReply(from *bufio.Reader) (any, error) {
	left := maxReply
	return readValue(from, &left, maxDepth)
}

func readValue(from *bufio.Reader, left *int, depth int) (any, error) {
	line, err := readLine(from)
	if err != nil {
		return nil, err
	}
	if *left -= oneValue + len(line); *left < 0 || len(line) == 0 {
		return nil, errProtocol
	}
	switch kind := line[0]; kind {
	case '+':
		return string(line[1:]), nil
	case '-':
		return refusal(line[1:]), nil
	case ':':
		if n, err := strconv.ParseInt(string(line[1:]), 10, 64); err == nil {
			return n, nil
		}
	case '$', '*':
		if n, err := strconv.Atoi(string(line[1:])); err == nil {
			return readSized(from, kind, n, left, depth)
		}
	}
	return nil, errProtocol
}

// readSized reads a reply of kind, whose length n was read before; -1 is nil.
func readSized(from *bufio.Reader, kind byte, n int, left *int, depth int) (any, error) {
	switch {
	case n == -1:
		return nil, nil
	case n < 0 || n > *left || depth == 0:
		return nil, errProtocol
	case kind == '*':
		return readList(from, n, left, depth)
	}
	*left -= n
	return readText(from, n)
}

func readList(from *bufio.Reader, n int, left *int, depth int) (any, error) {
	list := make([]any, 0, min(n, 1024)) // n may be wrong, so do not trust it with memory
	for range n {
		one, err := readValue(from, left, depth-1)
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
}

// readText reads n bytes and the end of the line.
func readText(from *bufio.Reader, n int) (any, error) {
	const step = 64 << 10
	var text []byte
	for len(text) < n+2 { // n may be wrong, so read step by step
		start := len(text)
		text = append(text, make([]byte, min(n+2-start, step))...)
		if _, err := io.ReadFull(from, text[start:]); err != nil {
			return nil, err
		}
	}
	if string(text[n:]) != "\r\n" {
		return nil, errProtocol
	}
	return string(text[:n]), nil
}

// readLine reads a line without its end. It is valid until the next read.
func readLine(from *bufio.Reader) ([]byte, error) {
	line, err := from.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		err = errProtocol
	}
	if err != nil {
		return nil, err
	}
	if len(line) < 2 || line[len(line)-2] != '\r' {
		return nil, errProtocol
	}
	return line[:len(line)-2], nil
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
