package servers

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// A Consul is a cluster of one Consul server.
type Consul struct {
	*Process
	port int
}

// StartConsul starts a server on a folder of its own, and returns when it has a leader.
func StartConsul(t testing.TB) *Consul {
	t.Helper()
	dir, ports := DataDir(t), FreePorts(t, 3)
	c := &Consul{port: ports[0]}
	binary := built(t, "consul", "consul", "scripts/consul/go.mod", "github.com/hashicorp/consul")
	c.Process = start(t, dir, nil, binary, "agent", "-server", "-bootstrap-expect", "1", "-node", "n0",
		"-bind", "127.0.0.1", "-serf-lan-bind", "127.0.0.2", // gossip is by UDP, where FreePorts marks its ports on 127.0.0.1
		"-client", "127.0.0.1", "-data-dir", filepath.Join(dir, "data"), "-log-level", "error", "-disable-host-node-id",
		"-http-port", fmt.Sprint(ports[0]), "-server-port", fmt.Sprint(ports[1]), "-serf-lan-port", fmt.Sprint(ports[2]),
		"-serf-wan-port", "-1", "-dns-port", "-1", "-grpc-port", "-1", "-grpc-tls-port", "-1",
		"-hcl", "performance { raft_multiplier = 1 } limits { http_max_conns_per_client = 1000 } disable_update_check = true connect { enabled = false }")
	c.until("ready", func() error {
		leader, err := get(c.Endpoint() + "/v1/status/leader")
		if err == nil && !strings.Contains(string(leader), ":") {
			err = fmt.Errorf("no leader: %s", leader)
		}
		return err
	})
	return c
}

// Endpoint is the server's URL.
func (c *Consul) Endpoint() string { return "http://" + address(c.port) }
