package memcachelock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/rehearsal"
)

// Check asks each server for its version, its evictions, and the time, which it reports in whole
// seconds. Servers without an answer are findings while others answer.
func (d *Driver) Check(ctx context.Context) (found []driver.Finding, err error) {
	away := 0
	for _, s := range d.servers {
		one, failed := s.findings(ctx)
		found = append(found, one...)
		if failed != nil {
			away, err = away+1, failed
			found = append(found, driver.Finding{About: driver.AboutServer, Where: s.address, Level: driver.Unfit,
				Text: "it does not serve: " + failed.Error(), Advice: "let memcached run there: the names that belong to it wait for it"})
		}
	}
	if away < len(d.servers) {
		err = nil
	}
	return found, err
}

// askEach bounds the questions to one server.
const askEach = time.Second

func (s *server) findings(ctx context.Context) (found []driver.Finding, err error) {
	ctx, cancel := context.WithTimeout(ctx, askEach)
	defer cancel()
	err = s.call(ctx, s.links.Watch, func(on *conn) error {
		before := time.Now()
		stats, err := on.stats("stats\r\n")
		if err != nil {
			return err
		}
		after := time.Now()
		settings, err := on.stats("stats settings\r\n")
		if err != nil {
			return err
		}
		found = append(found, driver.Finding{About: driver.AboutVersion, Text: "memcached " + stats["version"]}, evictionFinding(stats, settings),
			driver.Finding{About: driver.AboutPersistence, Text: "a restart forgets who holds what, as memcached keeps nothing"})
		if now, err := strconv.ParseInt(stats["time"], 10, 64); err == nil {
			found = append(found, driver.ClockFinding("", before, time.Unix(now, int64(time.Second/2)), after))
		}
		for i := range found {
			found[i].Where = s.address
		}
		return nil
	})
	return found, err
}

func evictionFinding(stats, settings map[string]string) driver.Finding {
	f := driver.Finding{About: driver.AboutEviction, Text: "it has evicted nothing so far"}
	n := stats["evictions"]
	switch {
	case n != "" && n != "0":
		f.Level, f.Advice = driver.Weak, "give the locks a server of their own, or more memory (-m)"
		f.Text = fmt.Sprintf("it has evicted %s items: locks may have been among them, and will be", n)
	case settings["evictions"] == "off":
		f.Text = "it evicts nothing (-M)"
	}
	return f
}

// stats returns the server's statistics.
func (c *conn) stats(command string) (map[string]string, error) {
	all := make(map[string]string)
	return all, c.ask(append(c.command[:0], command...), func() error {
		for {
			line, err := c.line()
			if err != nil || line == "END" {
				return err
			}
			words := strings.SplitN(line, " ", 3)
			if len(words) < 3 || words[0] != "STAT" {
				return answerError(line)
			}
			all[words[1]] = words[2]
		}
	})
}

// Rehearse implements [driver.Checker], on each server.
func (d *Driver) Rehearse(ctx context.Context) error {
	for _, s := range d.servers {
		err := rehearsal.Run(ctx, rehearsal.Name(), rehearsal.TTL, func(req driver.Request) (driver.Claim, error) {
			made, err := d.Claim(req)
			if c, ok := made.(*claim); ok {
				c.server = s // even if the name belongs to another server, because no other claim asks for it
			}
			return made, err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", s.address, err)
		}
	}
	return nil
}
