package memcachelock

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// answering is a connection to a server that says answer to whatever it is asked, and ends.
func answering(t testing.TB, answer []byte) *conn {
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close() })
	go func() {
		defer theirs.Close()
		one := make([]byte, 4096)
		if _, err := theirs.Read(one); err == nil {
			_, _ = theirs.Write(answer) // who does not read it has closed
		}
	}()
	c, _ := dial(t.Context(), func(context.Context, string, string) (net.Conn, error) { return ours, nil }, "")
	return c
}

// Whatever a server says, it is understood or an error, after which the connection is not used.
func FuzzAnswers(f *testing.F) {
	for _, s := range []string{
		"END\r\n", "VALUE k 0 2 7\r\nab\r\nEND\r\n", "VALUE other 0 0 7\r\n\r\nEND\r\n", "VALUE k 0 4294967295 7\r\nab\r\nEND\r\n",
		"VALUE k 0 2\r\nab\r\nEND\r\n", "VALUE k 0 1 7\r\nab\r\nEND\r\n", "SERVER_ERROR out of memory\r\n", "STORED\r\n", "", "\n", strings.Repeat("x", 5000),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		c := answering(t, answer)
		found := make([]item, 1)
		if err := c.gets([]string{"k"}, found); (err != nil) != c.broken {
			t.Errorf("%v, broken: %v", err, c.broken)
		}
		c = answering(t, answer)
		err := c.store("cas", "k", nil, time.Second, 1)
		if (err == nil) != (strings.TrimRight(string(answer[:strings.IndexByte(string(answer), '\n')+1]), "\r\n") == "STORED") {
			t.Errorf("%q: %v", answer, err)
		}
	})
}

// An answer that breaks off is unknown, and no word of the server's.
func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "STOR", "VALUE k 0 2 7\r\na", "VALUE k 0 2 7\r\nab\r\n"} {
		c := answering(t, []byte(s))
		err := c.gets([]string{"k"}, make([]item, 1))
		if _, said := errors.AsType[answerError](err); err == nil || said || !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v", s, err)
		}
	}
}
