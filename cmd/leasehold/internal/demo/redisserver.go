package demo

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/secret"
)

// A redisServer is a Redis that a scenario may kill.
type redisServer struct {
	addr   string
	client *redis.Client
	cmd    *exec.Cmd
	life   io.Closer
}

// keeper runs a server that is killed when the keeper's input ends: also when this program
// was killed.
const keeper = `"$@" >/dev/null 2>&1 & read -r _; kill -9 $!; wait`

// serverWithin is how long a server may take to answer on a slow machine.
const serverWithin = 20 * time.Second

// startRedis starts a server that keeps its data in memory, as a replica of the one at
// primary if that is not "".
func startRedis(ctx context.Context, dir, primary string) (*redisServer, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("%w: redis-server is not installed; name servers with --store redlock://h1,h2,h3", ErrSettings)
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	args := []string{"-c", keeper, "sh", program, "--port", port, "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"}
	if primary != "" {
		args = append(args, "--replicaof", strings.Replace(primary, ":", " ", 1))
	}
	s := &redisServer{addr: net.JoinHostPort("127.0.0.1", port), cmd: exec.Command("sh", args...)}
	s.cmd.Env = secret.Environ()
	if s.life, err = s.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start redis-server: %w", err)
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start redis-server: %w", err)
	}
	s.client = redis.NewClient(&redis.Options{Addr: s.addr})
	if err := s.until(ctx, primary != ""); err != nil {
		s.kill()
		return nil, err
	}
	return s, nil
}

// until waits until the server answers, and as a replica has the primary's data.
func (s *redisServer) until(ctx context.Context, replica bool) error {
	ctx, cancel := context.WithTimeout(ctx, serverWithin)
	defer cancel()
	for {
		text, err := s.client.Info(ctx, "replication").Result()
		if err == nil && (!replica || strings.Contains(text, "master_link_status:up")) {
			return nil
		}
		if paused := pause(ctx, 10*time.Millisecond); paused != nil {
			return fmt.Errorf("redis-server is not ready: %w", paused)
		}
	}
}

// promote makes a replica a primary.
func (s *redisServer) promote(ctx context.Context) error {
	return s.client.Do(ctx, "REPLICAOF", "NO", "ONE").Err()
}

// kill ends the server as a power cut would. It may be called again.
func (s *redisServer) kill() {
	s.life.Close()
	_ = s.cmd.Wait() // the keeper's end says nothing
	s.client.Close()
}

// freePort returns a port that nobody listens on. Another process may take it before the
// server does, which then does not start.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
