package servers

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A NATS is one server of a cluster, with JetStream.
type NATS struct {
	server
	Name    string
	cluster int    // port
	monitor int    // port
	config  string // without what Configure appends
}

// StartNATS starts a cluster of n servers, or a single server, and returns when JetStream serves.
// more is appended to the configuration of each.
func StartNATS(t testing.TB, n int, more string) []*NATS {
	t.Helper()
	ports := FreePorts(t, 3*n)
	var all []*NATS
	var routes []string
	for i := range n {
		s := &NATS{
			server: server{Port: ports[3*i], life: t, dir: DataDir(t), binary: built(t, "nats-server", "nats", "e2e/go.mod", "github.com/nats-io/nats-server/v2")},
			Name:   fmt.Sprint("n", i), cluster: ports[3*i+1], monitor: ports[3*i+2],
		}
		s.args = []string{"-c", s.file()}
		s.serves = func() error { _, err := s.ask("/healthz"); return err } // JetStream serves
		all = append(all, s)
		routes = append(routes, "nats://"+address(s.cluster))
	}
	for _, s := range all {
		config := fmt.Sprintf("server_name: %s\nlisten: %q\nhttp: %q\njetstream { store_dir: %q, sync_interval: always }\n",
			s.Name, s.Addr(), s.Monitor(), s.Data())
		if n > 1 {
			config += fmt.Sprintf("cluster { name: c, listen: %q, routes: [%s] }\n", address(s.cluster), strings.Join(routes, ", "))
		}
		s.config = config
		s.Configure(more)
		s.Begin()
	}
	for _, s := range all {
		s.Ready()
	}
	if n > 1 { // otherwise a bucket may find too few servers for its replicas
		all[0].until("joined by all", func() error {
			if !slices.ContainsFunc(all, func(s *NATS) bool { return s.sees(n) }) {
				return errors.New("no leader sees all")
			}
			return nil
		})
	}
	return all
}

// Configure replaces what was appended to the configuration. The server reads it when it starts, or
// by Reconfigure.
func (s *NATS) Configure(more string) {
	s.life.Helper()
	write(s.life, s.file(), s.config+more)
}

// Reconfigure calls Configure and lets the running server reload its configuration. It does not
// wait for that.
func (s *NATS) Reconfigure(more string) {
	s.life.Helper()
	s.Configure(more)
	s.Signal(syscall.SIGHUP)
}

// file returns the path of the configuration.
func (s *NATS) file() string { return filepath.Join(s.dir, "nats.conf") }

// ask returns a page of the server's monitoring.
func (s *NATS) ask(path string) ([]byte, error) { return get("http://" + s.Monitor() + path) }

// Monitor returns the address of the server's monitoring.
func (s *NATS) Monitor() string { return address(s.monitor) }

// A jetStreamState is the part of a server's report on JetStream that is used here.
type jetStreamState struct {
	Meta struct {
		Leader string `json:"leader"`
		Peers  []struct {
			Current bool `json:"current"`
		} `json:"replicas"`
	} `json:"meta_cluster"`
	Accounts []struct {
		Streams []struct {
			Name    string `json:"name"`
			Cluster struct {
				Leader string `json:"leader"`
			} `json:"cluster"`
		} `json:"stream_detail"`
	} `json:"account_details"`
}

func (s *NATS) jetStream() (found jetStreamState) {
	if text, err := s.ask("/jsz?streams=true&accounts=true"); err == nil {
		_ = json.Unmarshal(text, &found) // on an error found stays empty
	}
	return found
}

// Leads reports whether the server leads a bucket.
func (s *NATS) Leads(bucket string) bool {
	for _, a := range s.jetStream().Accounts {
		for _, st := range a.Streams {
			if st.Name == "KV_"+bucket && st.Cluster.Leader == s.Name {
				return true
			}
		}
	}
	return false
}

// sees reports whether the server leads a cluster of n whose members are all current.
func (s *NATS) sees(n int) bool {
	meta, current := s.jetStream().Meta, 0
	for _, p := range meta.Peers {
		if p.Current {
			current++
		}
	}
	return meta.Leader == s.Name && current == n-1
}

// NATSAddrs returns the hosts and ports of servers, separated by commas.
func NATSAddrs(all []*NATS) string {
	var addrs []string
	for _, s := range all {
		addrs = append(addrs, s.Addr())
	}
	return strings.Join(addrs, ",")
}
