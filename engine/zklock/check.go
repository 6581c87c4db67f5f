package zklock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/rehearsal"
	"github.com/leasehold-go/leasehold/internal/several"
)

// configNode lists the servers of the ensemble since 3.5. It is empty for a server without an
// ensemble.
const configNode = "/" + reserved + "/config"

// askEach bounds the question to one server.
const askEach = time.Second

// Check asks each server for its version and status (the word srvr), and the ensemble for its
// members. Servers without an answer are findings while others answer.
func (d *Driver) Check(ctx context.Context) ([]driver.Finding, error) {
	members, err := d.members(ctx)
	if err != nil {
		return nil, err
	}
	found := make([][]driver.Finding, len(d.servers))
	several.Bounded(len(found), len(found), func(i int) { found[i] = d.checkServer(ctx, d.servers[i]) })
	findings := slices.Concat(found...)
	if members >= 0 {
		findings = append(findings, driver.QuorumFinding("", members))
	}
	return findings, nil
}

// members returns how many servers vote; -1: they do not say.
func (d *Driver) members(ctx context.Context) (int, error) {
	data, err := ask(ctx, d, func(_ *session, client *zk.Conn) ([]byte, error) {
		data, _, err := client.Get(configNode)
		return data, err
	})
	switch {
	case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrNoAuth):
		return -1, nil
	case err != nil:
		return 0, explain(err)
	}
	members := 0
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "server.") && !strings.Contains(line, ":observer") {
			members++
		}
	}
	return max(members, 1), nil
}

// checkServer asks one server. It reports nothing about a server that does not answer such words.
func (d *Driver) checkServer(ctx context.Context, server string) []driver.Finding {
	text, err := d.srvr(ctx, server)
	if err != nil {
		return []driver.Finding{{About: driver.AboutServer, Where: server, Level: driver.Weak,
			Text: "it does not answer: " + err.Error(), Advice: "start it, or take it out of the URL"}}
	}
	_, version, ok := strings.Cut(text, "Zookeeper version: ")
	if !ok {
		if strings.Contains(text, "not currently serving") {
			return []driver.Finding{{About: driver.AboutServer, Where: server, Level: driver.Weak,
				Text: "it serves nobody, because it has no quorum", Advice: "let it reach the others"}}
		}
		return nil // srvr is not on its list of allowed words
	}
	version, _, _ = strings.Cut(version, "-")
	_, mode, _ := strings.Cut(text, "Mode: ")
	mode, _, _ = strings.Cut(mode, "\n")
	f := driver.Finding{About: driver.AboutVersion, Where: server, Text: fmt.Sprintf("ZooKeeper %s, %s", version, mode)}
	if d.plain.Load() {
		f.Level, f.Advice = driver.Weak, "update it to 3.5 or newer"
		f.Text += ": it has no container nodes, so that each name leaves a node behind"
	}
	return []driver.Finding{f}
}

func (d *Driver) srvr(ctx context.Context, server string) (string, error) {
	within := askEach
	if end, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(end))
	}
	conn, err := d.opts.Dial("tcp", server, within)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte("srvr")); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(conn, 64<<10))
	return string(text), err
}

// Rehearse implements [driver.Checker]. It removes the nodes that it made.
func (d *Driver) Rehearse(ctx context.Context) error {
	there, err := ask(ctx, d, func(_ *session, client *zk.Conn) (bool, error) {
		there, _, err := client.Exists(d.top())
		return there, err
	})
	if err != nil {
		return explain(err)
	}
	s, err := d.any() // a session of another TTL would cost one more
	if err != nil {
		return err
	}
	name := rehearsal.Name()
	err = rehearsal.Run(ctx, name, s.ttl, d.Claim)
	ending, cancel := rehearsal.Ending(ctx)
	defer cancel()
	_, _ = ask(ending, d, func(_ *session, client *zk.Conn) (struct{}, error) { // nodes in use stay
		_ = client.Delete(d.path(name), -1)
		for top := d.root; !there && len(top) > len(d.opts.Chroot); top = top[:strings.LastIndexByte(top, '/')] {
			if client.Delete(top, -1) != nil {
				break
			}
		}
		return struct{}{}, nil
	})
	return err
}
