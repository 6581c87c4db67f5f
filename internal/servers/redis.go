package servers

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A Redis is one Redis server.
type Redis struct{ server }

// StartRedis starts a Redis that keeps its data in memory. args are further options, such as
// "--appendonly", "yes".
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	return startRedisAt(t, FreePorts(t, 1)[0], nil, args...)
}

func startRedisAt(t testing.TB, port int, env []string, args ...string) *Redis {
	t.Helper()
	r := &Redis{server{Port: port, life: t, dir: DataDir(t), binary: Need(t, "redis", "redis-server"), env: env}}
	if err := os.Mkdir(r.Data(), 0o700); err != nil {
		t.Fatalf("make a folder: %v", err)
	}
	r.args = append([]string{
		"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", r.Data(), "--save", "", "--appendonly", "no",
	}, args...)
	r.serves = func() error { _, err := r.Do("PING"); return err }
	r.Start(t)
	return r
}

// Loading restarts the server with more options, and returns as soon as it reports that it is
// loading its data.
func (r *Redis) Loading(t testing.TB, args ...string) {
	t.Helper()
	r.Process = start(r.life, r.dir, r.env, r.binary, append(r.args, args...)...)
	r.until("loading", func() error {
		_, err := r.Do("PING")
		if err != nil && strings.HasPrefix(err.Error(), "LOADING") {
			return nil
		}
		return fmt.Errorf("PING: %v", err)
	})
}

// Do sends one command on a connection of its own and returns the reply as text: "" for nil, and
// one line for each element of a list.
func (r *Redis) Do(args ...string) (string, error) { return redisDo(r.Addr(), args...) }

// Must is like Do, but fails t on an error.
func (r *Redis) Must(t testing.TB, args ...string) string {
	t.Helper()
	reply, err := r.Do(args...)
	if err != nil {
		t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return reply
}

func redisDo(addr string, args ...string) (string, error) {
	conn, err := dial(addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := conn.Write([]byte(b.String())); err != nil {
		return "", err
	}
	return readReply(bufio.NewReader(conn))
}

func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	kind, rest := line[0], strings.TrimSpace(line[1:])
	switch kind {
	case '-':
		return "", errors.New(rest)
	case '$':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return "", err
		}
		body := make([]byte, n+2)
		if _, err := io.ReadFull(r, body); err != nil {
			return "", err
		}
		return string(body[:n]), nil
	case '*':
		n, err := strconv.Atoi(rest)
		if err != nil {
			return "", err
		}
		var all []string
		for range n {
			one, err := readReply(r)
			if err != nil {
				return "", err
			}
			all = append(all, one)
		}
		return strings.Join(all, "\n"), nil
	}
	return rest, nil
}

// A Sentinel is a primary with two replicas, watched by three sentinels.
type Sentinel struct {
	Master    string // its name
	Nodes     []*Redis
	Sentinels []string // addresses
	processes []*Process
}

// StartSentinel starts the six processes. args are options of the servers.
func StartSentinel(t testing.TB, args ...string) *Sentinel {
	t.Helper()
	s := &Sentinel{Master: "mymaster"}
	ports := FreePorts(t, 6)
	for i, port := range ports[:3] {
		all := append([]string{"--repl-diskless-sync-delay", "0"}, args...)
		if i > 0 {
			all = append(all, "--replicaof", "127.0.0.1 "+fmt.Sprint(ports[0]))
		}
		s.Nodes = append(s.Nodes, startRedisAt(t, port, nil, all...))
	}
	for _, r := range s.Nodes[1:] {
		r.until("in sync", func() error { return expect(r.Addr(), "master_link_status:up", "INFO", "replication") })
	}
	for _, port := range ports[3:] {
		s.Sentinels = append(s.Sentinels, address(port))
		s.processes = append(s.processes, startSentinel(t, port,
			fmt.Sprintf("monitor %s 127.0.0.1 %d 2", s.Master, ports[0]), "down-after-milliseconds "+s.Master+" 5000", "failover-timeout "+s.Master+" 5000"))
	}
	for i, p := range s.processes {
		p.until("in agreement", func() error { return s.agrees(s.Sentinels[i]) })
	}
	return s
}

// startSentinel starts one sentinel with this configuration.
func startSentinel(t testing.TB, port int, told ...string) *Process {
	t.Helper()
	dir := DataDir(t)
	conf := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel %s\n", port, dir, strings.Join(told, "\nsentinel "))
	write(t, conf, text)
	return start(t, dir, nil, Need(t, "redis", "redis-sentinel"), conf)
}

// StartLoneSentinel starts one sentinel of the primary at addr and returns its address. The
// sentinel calls the primary mymaster, and never considers it down.
func StartLoneSentinel(t testing.TB, addr string) string {
	t.Helper()
	port := FreePorts(t, 1)[0]
	p := startSentinel(t, port, "monitor mymaster "+strings.Replace(addr, ":", " ", 1)+" 1", "down-after-milliseconds mymaster 3600000")
	p.until("watching", func() error { return expect(address(port), "flags\nmaster\n", "SENTINEL", "master", "mymaster") })
	return address(port)
}

// agrees returns an error while a sentinel does not know the other sentinels and both replicas.
func (s *Sentinel) agrees(sentinel string) error {
	if err := expect(sentinel, "OK 3", "SENTINEL", "ckquorum", s.Master); err != nil {
		return err
	}
	text, err := redisDo(sentinel, "SENTINEL", "replicas", s.Master)
	if err != nil {
		return err
	}
	known := 0
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if line == "runid" && i+1 < len(lines) && lines[i+1] != "" {
			known++
		}
	}
	if known != 2 {
		return fmt.Errorf("%d replicas of 2 are known", known)
	}
	return nil
}

// Primary returns the node that the sentinels call the primary.
func (s *Sentinel) Primary(t testing.TB) *Redis {
	t.Helper()
	text, err := redisDo(s.Sentinels[0], "SENTINEL", "get-master-addr-by-name", s.Master)
	if err != nil {
		t.Fatalf("ask a sentinel: %v", err)
	}
	for _, r := range s.Nodes {
		if strings.HasSuffix(text, "\n"+fmt.Sprint(r.Port)) {
			return r
		}
	}
	t.Fatalf("the primary is at %q, which is none of ours", text)
	return nil
}

// StartCluster starts n primaries that share the slots.
func StartCluster(t testing.TB, n int) []*Redis {
	t.Helper()
	return startCluster(t, n, 0)
}

// StartReplicatedCluster is like StartCluster, with a replica of each primary. It returns the
// primaries.
func StartReplicatedCluster(t testing.TB, n int) []*Redis {
	t.Helper()
	primaries := startCluster(t, n, 1)[:n]
	for _, r := range primaries {
		r.until("with a replica", func() error { return expect(r.Addr(), "state=online", "INFO", "replication") })
	}
	return primaries
}

func startCluster(t testing.TB, n, replicas int) []*Redis {
	t.Helper()
	var nodes []*Redis
	create := []string{"--cluster", "create"}
	for _, port := range FreePorts(t, n*(1+replicas)) {
		r := startRedisAt(t, port, nil, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "2000", "--bind", "127.0.0.1", "-::1",
			"--repl-diskless-sync-delay", "0")
		nodes = append(nodes, r)
		create = append(create, r.Addr())
	}
	create = append(create, "--cluster-replicas", fmt.Sprint(replicas), "--cluster-yes")
	if out, err := exec.Command(Need(t, "redis", "redis-cli"), create...).CombinedOutput(); err != nil {
		t.Fatalf("create a cluster: %v\n%s", err, out)
	}
	for _, r := range nodes {
		r.until("part of a cluster", func() error { return expect(r.Addr(), "cluster_state:ok", "CLUSTER", "INFO") })
	}
	return nodes
}

// expect sends a command and returns an error unless the answer contains want.
func expect(addr, want string, args ...string) error {
	text, err := redisDo(addr, args...)
	if err == nil && !strings.Contains(text, want) {
		err = fmt.Errorf("no %q in %s", want, tail(text))
	}
	return err
}
