package servers

import (
	"bufio"
	"fmt"
	"strings"
	"testing"
)

// A Memcached is one memcached server. It loses all its data when it restarts.
type Memcached struct{ server }

// StartMemcached starts a memcached. args are further options, such as "-m", "1".
func StartMemcached(t testing.TB, args ...string) *Memcached {
	t.Helper()
	m := &Memcached{server{Port: FreePorts(t, 1)[0], life: t, dir: t.TempDir(), binary: Need(t, "memcached", "memcached")}}
	m.args = append([]string{"-u", "memcache", "-l", "127.0.0.1", "-p", fmt.Sprint(m.Port), "-U", "0"}, args...)
	m.serves = func() error { _, err := m.Do("version"); return err }
	m.Start(t)
	return m
}

// Do sends one command on a connection of its own and returns the lines of its answer.
func (m *Memcached) Do(command string) (string, error) {
	conn, err := dial(m.Addr())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		return "", err
	}
	many := strings.HasPrefix(command, "stats") || strings.HasPrefix(command, "get")
	var lines []string
	for r := bufio.NewReader(conn); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		line = strings.TrimSpace(line)
		if !many || line == "END" || strings.Contains(line, "ERROR") {
			lines = append(lines, line)
			return strings.Join(lines, "\n"), nil
		}
		lines = append(lines, line)
	}
}

// Must is like Do, but fails t on an error.
func (m *Memcached) Must(t testing.TB, command string) string {
	t.Helper()
	answer, err := m.Do(command)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return answer
}

// Stat returns one of the server's statistics, such as "cmd_touch".
func (m *Memcached) Stat(t testing.TB, name string) string {
	t.Helper()
	_, rest, found := strings.Cut(m.Must(t, "stats"), "STAT "+name+" ")
	if !found {
		t.Fatalf("no %s among the server's numbers", name)
	}
	value, _, _ := strings.Cut(rest, "\n")
	return value
}
