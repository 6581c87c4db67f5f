package explored

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// value reads one value of Redis' protocol whole, as it is.
func value(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(line[1:])))
	switch line[0] {
	case '$':
		if err != nil || n < 0 {
			return line, err
		}
		text := make([]byte, n+2)
		_, err = io.ReadFull(r, text)
		return append(line, text...), err
	case '*', '>', '%':
		if line[0] == '%' {
			n *= 2
		}
		for range n {
			one, err := value(r)
			if err != nil {
				return nil, err
			}
			line = append(line, one...)
		}
	}
	return line, nil
}

// frames splits what was written into whole requests, and what is left.
func frames(b []byte) (whole [][]byte, rest []byte) {
	for {
		r := bufio.NewReader(bytes.NewReader(b))
		one, err := value(r)
		if err != nil {
			return whole, b
		}
		whole, b = append(whole, one), b[len(one):]
	}
}

// words are the parts of a request, or of an answer that is a list.
func words(frame []byte) (all []string) {
	lines := strings.Split(string(frame), "\r\n")
	for i := 2; i < len(lines); i += 2 {
		all = append(all, lines[i])
	}
	return all
}

// A reply prints as a person reads it.
type reply []byte

func (r reply) String() string {
	text := strings.ReplaceAll(strings.TrimSpace(string(r)), "\r\n", " ")
	return fmt.Sprintf("%.120q", text)
}
