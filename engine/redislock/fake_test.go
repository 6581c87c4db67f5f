package redislock

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// A speaker answers each command on a connection: with int64, string, []any, a refusal, or raw bytes.
// Nothing (nil) is no answer. It is called by one connection at a time.
type speaker func(words []string) any

// raw goes over the wire as it is.
type raw string

// hangUp ends the connection.
type hangUp struct{}

// speaking is a client whose server answers scripts and WAIT by speak; it is of version 7.0.15.
func speaking(t testing.TB, speak speaker) *redis.Client {
	return speakingOf(t, "7.0.15", speak)
}

func speakingOf(t testing.TB, version string, speak speaker) *redis.Client {
	t.Helper()
	var mu sync.Mutex
	addr := listen(t, func(words []string) any {
		switch words[0] {
		case "info":
			return "redis_version:" + version + "\r\nrun_id:abc\r\n"
		case "EVALSHA", "EVAL", "WAIT":
			mu.Lock()
			defer mu.Unlock()
			return speak(words)
		case "INFO":
			return "run_id:abc\r\n"
		case "subscribe":
			return nil
		case "ping":
			return raw("+PONG\r\n")
		case "hello":
			return refusal("ERR unknown command")
		}
		return "OK"
	})
	client := redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1, MaxRetries: -1, Protocol: 2})
	t.Cleanup(func() { client.Close() })
	return client
}

// listen starts a server that answers all commands by speak, until t ends. It returns its address.
func listen(t testing.TB, speak speaker) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				converse(c, speak)
			}()
		}
	}()
	return l.Addr().String()
}

func converse(c net.Conn, speak speaker) {
	from := bufio.NewReader(c)
	for {
		r, err := readReply(from)
		if err != nil {
			return
		}
		list, _ := r.([]any)
		words := make([]string, len(list))
		for i, w := range list {
			words[i] = text(w)
		}
		answer := speak(words)
		if _, ends := answer.(hangUp); ends {
			return
		}
		if _, err := c.Write(onWire(nil, answer)); err != nil {
			return
		}
	}
}

func onWire(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return b
	case raw:
		return append(b, v...)
	case refusal:
		return fmt.Appendf(b, "-%s\r\n", string(v))
	case int64:
		return fmt.Appendf(b, ":%d\r\n", v)
	case string:
		return appendText(b, v)
	case []any:
		b = appendSize(b, '*', len(v))
		for _, one := range v {
			b = onWire(b, one)
		}
		return b
	}
	panic(fmt.Sprintf("%T", v))
}

// lockOf is the lock key of a script.
func lockOf(words []string) string { return words[3] }

// isScript reports whether words run that script.
func isScript(words []string, s *script) bool {
	return words[1] == s.load().sha || words[1] == s.load().text
}

func driverOn(t testing.TB, client *redis.Client, o *Options) *Driver {
	t.Helper()
	d, err := New(client, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// noServer is a client that reaches nobody.
func noServer() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1, MaxRetries: -1})
}

// grantPlain answers take.lua: the fence is the length of the lock key. It gives up everything.
func grantPlain(words []string) any {
	switch {
	case words[0] == "WAIT":
		return int64(1)
	case isScript(words, scriptTake):
		return int64(len(lockOf(words)))
	case isScript(words, scriptGive), isScript(words, scriptRelease):
		return int64(1)
	}
	return refusal("ERR " + strings.ReplaceAll(strings.Join(words, " "), "\n", " ")) // of one line
}
