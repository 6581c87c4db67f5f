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

// A redisServer is a Redis server that a scenario may kill.
type redisServer struct {
	addr   string
	client *redis.Client
	cmd    *exec.Cmd
	life   io.Closer
}

// keeper is a shell script that runs a server, and kills it when the keeper's input ends. That also
// happens if this program is killed. The signals of a terminal reach the keeper as well, and must
// not end it before.
const keeper = `trap '' HUP INT QUIT TERM; "$@" >/dev/null 2>&1 & read -r _; kill -9 $!; wait`

// serverWithin limits how long a server may take to answer, even on a slow machine.
const serverWithin = 20 * time.Second

// startRedis starts a server that keeps its data in memory. If primary is not "", the server is its
// replica.
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

// until waits until the server answers and, if it is a replica, has the data of its primary.
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

// promote makes a replica the primary.
func (s *redisServer) promote(ctx context.Context) error {
	return s.client.Do(ctx, "REPLICAOF", "NO", "ONE").Err()
}

// kill ends the server at once, as a power cut would. It may be called again.
func (s *redisServer) kill() {
	s.life.Close()
	_ = s.cmd.Wait() // the keeper's exit status means nothing
	s.client.Close()
}

// freePort returns a port on which nobody listens. If another process takes it before the server
// does, the server does not start.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
