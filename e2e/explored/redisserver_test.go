package explored

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// A server is a real one for all schedules, one after the other. All that is asked of it goes over
// one connection, in RESP3, on which it also tells what it publishes: so each request takes one exchange.
type server struct {
	t       *testing.T
	clock   *servers.Clock
	file    *os.File
	from    *bufio.Reader     // file
	plain   *os.File          // speaks RESP2
	names   map[string]string // of scripts, by what Redis calls them
	load    []byte            // has it know all scripts
	knows   bool              // it knows them
	asides  map[string]reply  // that it has answered once
	batches batches
}

// batches are what was seen of calls that go together.
type batches struct {
	onTheWay, written int // over one connection, and at once; at most
}

func startServer(t *testing.T) *server {
	// On a clock that stands, the thread would never sleep.
	r, clock := servers.StartRedisWithClock(t, "--jemalloc-bg-thread", "no")
	s := &server{t: t, clock: clock, names: make(map[string]string), asides: make(map[string]reply)}
	s.readScripts()
	s.file = s.connect(r.Addr())
	s.from = bufio.NewReader(s.file)
	s.plain = s.connect(r.Addr())
	return s
}

// readScripts reads those of redislock.
func (s *server) readScripts() {
	const folder = "../../engine/redislock/scripts"
	files, err := filepath.Glob(filepath.Join(folder, "*.lua"))
	if err != nil || len(files) == 0 {
		s.t.Fatalf("no scripts in %s: %v", folder, err)
	}
	text := make(map[string]string)
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			s.t.Fatal(err)
		}
		text[filepath.Base(file)] = string(b)
	}
	parts := []string{"history.lua", "prelude.lua", "memory.lua", "obstacle.lua"}
	for name, script := range text {
		for _, part := range parts {
			script = strings.Replace(script, "--include "+part+"\n", text[part], 1)
		}
		s.load = append(s.load, command("SCRIPT", "LOAD", script)...)
		s.names[shaOf(script)] = strings.TrimSuffix(name, ".lua")
	}
}

func shaOf(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}

// connect makes a connection that blocks a thread, which costs less than to have the runtime wait.
func (s *server) connect(address string) *os.File {
	c, err := net.Dial("tcp", address)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	file, err := c.(*net.TCPConn).File()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { file.Close() })
	if err := syscall.SetNonblock(int(file.Fd()), false); err != nil {
		s.t.Fatal(err)
	}
	return file
}

// command writes a request.
func command(words ...string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b.Bytes()
}

// reset has the server forget all, and know the scripts, as it does after the first calls.
func (s *server) reset() {
	s.ask(command("RESET"), command("HELLO", "3"), command("FLUSHALL"))
	if !s.knows {
		scripts, _ := frames(s.load)
		s.ask(scripts...)
		s.knows = true
	}
}

// restart has it forget all, the scripts too.
func (s *server) restart() {
	s.ask(command("FLUSHALL"), command("SCRIPT", "FLUSH", "SYNC"))
	s.knows = false
}

// once is what the server has answered once to a client that speaks RESP2.
func (s *server) once(frame []byte) reply {
	said, ok := s.asides[string(frame)]
	if ok {
		return said
	}
	_, err := s.plain.Write(frame)
	if err == nil {
		said, err = value(bufio.NewReader(s.plain))
	}
	if err != nil {
		s.t.Errorf("the server does not answer: %v", err)
	}
	s.asides[string(frame)] = said
	return said
}

// An exchange is what came of some requests: the answers as one has them who speaks RESP2, and what was told meanwhile.
type exchange struct {
	answers []reply
	told    []reply
}

// ask has requests answered. Nothing but them has the server tell anything.
func (s *server) ask(requests ...[]byte) (x exchange) {
	if _, err := s.file.Write(bytes.Join(requests, nil)); err != nil {
		s.t.Errorf("the server is not there: %v", err)
		return x
	}
	for len(x.answers) < len(requests) {
		v, err := value(s.from)
		if err != nil {
			s.t.Errorf("the server does not answer: %v", err)
			return x
		}
		isMessage := v[0] == '>' && words(v)[0] == "message"
		switch v[0] {
		case '>':
			v[0] = '*'
		case '_':
			v = []byte("$-1\r\n")
		case '*':
			v = bytes.ReplaceAll(v, []byte("\r\n_\r\n"), []byte("\r\n$-1\r\n"))
		}
		if isMessage {
			x.told = append(x.told, v)
		} else {
			x.answers = append(x.answers, v)
		}
	}
	return x
}
