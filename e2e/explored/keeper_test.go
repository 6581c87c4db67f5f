package explored

import (
	"fmt"
	"io"
	"log"
	"net"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// TestKeeperIsLikeZooKeeper makes the same calls on a real ZooKeeper and on a keeper. What both
// answer, and the events that they tell, are the same.
func TestKeeperIsLikeZooKeeper(t *testing.T) {
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{})
	k := newKeeper()
	t.Cleanup(k.close)
	theirs := story(t, []string{z.Addr()}, net.DialTimeout)
	ours := story(t, []string{"127.0.0.1:1"}, func(string, string, time.Duration) (net.Conn, error) {
		return dialKeeper(k, nil), nil
	})
	alike(t, "ZooKeeper", theirs, ours)
}

// A teller makes calls and writes down what comes of them.
type teller struct {
	t       *testing.T
	lines   []string
	servers []string
	dial    zk.Dialer
}

// A link is how a session reaches its server.
type link struct {
	mu   sync.Mutex
	conn net.Conn   // guarded by mu; the last one
	gate sync.Mutex // held while no other may begin
}

// away has the session lose its connection, and get another one after f.
func (l *link) away(f func()) {
	l.gate.Lock()
	defer l.gate.Unlock()
	l.mu.Lock()
	l.conn.Close()
	l.mu.Unlock()
	f()
}

// Timeouts of sessions: of one that must not end however busy the machine is, and of one that ends.
const long, short = 40 * time.Second, 5 * time.Second

// session begins one more.
func (s *teller) session(timeout time.Duration) (*zk.Conn, *link) {
	l := &link{}
	dial := func(network, address string, timeout time.Duration) (net.Conn, error) {
		l.gate.Lock()
		defer l.gate.Unlock()
		c, err := s.dial(network, address, timeout)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conn = c
		return c, err
	}
	c, events, err := zk.Connect(s.servers, timeout, zk.WithDialer(dial), zk.WithLogger(log.New(io.Discard, "", 0)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	for e := range events {
		if e.State == zk.StateHasSession {
			break
		}
	}
	go func() {
		for range events { // the client drops what nobody takes
		}
	}()
	return c, l
}

func (s *teller) tell(what string, values ...any) {
	line := what
	for _, v := range values {
		switch v := v.(type) {
		case *zk.Stat:
			if v != nil {
				line += fmt.Sprintf(" {version %d, children %d %d, ephemeral %v, %d bytes, changed %v, below %v}", v.Version, v.NumChildren, v.Cversion,
					v.EphemeralOwner != 0, v.DataLength, v.Mzxid > v.Czxid, v.Pzxid > v.Czxid)
			}
		case []string:
			slices.Sort(v)
			line += fmt.Sprint(" ", v)
		case []byte:
			line += fmt.Sprintf(" %q", v)
		default:
			line += fmt.Sprint(" ", v)
		}
	}
	s.lines = append(s.lines, line)
}

// hears waits for an event.
func (s *teller) hears(what string, from <-chan zk.Event) {
	select {
	case e := <-from:
		s.tell(what, e.Type, path.Base(e.Path))
	case <-time.After(20 * time.Second):
		s.t.Errorf("%s: no event", what)
	}
}

// silent notes that nothing was told so far.
func (s *teller) silent(what string, from <-chan zk.Event) {
	select {
	case e := <-from:
		s.tell(what, "tells", e.Type, path.Base(e.Path))
	default:
		s.tell(what, "is silent")
	}
}

func story(t *testing.T, servers []string, dial zk.Dialer) []string {
	s := &teller{t: t, servers: servers, dial: dial}
	a, link := s.session(long)
	b, _ := s.session(long)
	s.nodes(a)
	s.sequences(a, b)
	s.watches(a, b)
	s.transactions(a)
	s.ends(a)
	s.comesBack(a, b, link)
	s.expires(b)
	return s.lines
}

var all = zk.WorldACL(zk.PermAll)

func (s *teller) nodes(c *zk.Conn) {
	made, err := c.Create("/none/x", nil, 0, all)
	s.tell("create below nothing", made, err)
	made, err = c.Create("/a", []byte("one"), 0, all)
	s.tell("create", made, err)
	made, err = c.Create("/a", nil, 0, all)
	s.tell("create again", made, err)
	made, err = c.CreateContainer("/a/c", nil, zk.FlagContainer, all)
	s.tell("container", made, err)
	made, err = c.CreateContainer("/a/c", nil, zk.FlagContainer, all)
	s.tell("container again", made, err)
	data, stat, err := c.Get("/a")
	s.tell("get", data, stat, err)
	data, _, err = c.Get("/none")
	s.tell("get nothing", data, err)
	stat, err = c.Set("/a", []byte("second"), 0)
	s.tell("set", stat, err)
	_, err = c.Set("/a", nil, 0)
	s.tell("set another version", err)
	_, err = c.Set("/none", nil, -1)
	s.tell("set nothing", err)
	there, stat, err := c.Exists("/a")
	s.tell("exists", there, stat, err)
	there, _, err = c.Exists("/none")
	s.tell("nothing exists", there, err)
	names, stat, err := c.Children("/a")
	s.tell("children", names, stat, err)
	_, _, err = c.Children("/none")
	s.tell("children of nothing", err)
	s.tell("delete what has children", c.Delete("/a", -1))
	s.tell("delete nothing", c.Delete("/none", -1))
	s.tell("delete another version", c.Delete("/a/c", 7))
	s.tell("delete", c.Delete("/a/c", -1))
	_, stat, err = c.Get("/a")
	s.tell("and its parent", stat, err)
	synced, err := c.Sync("/a")
	s.tell("sync", synced, err)
}

func (s *teller) sequences(a, b *zk.Conn) {
	for range 2 {
		made, err := a.Create("/a/n-", nil, zk.FlagSequence|zk.FlagEphemeral, all)
		s.tell("sequence", made, err)
		made, err = b.Create("/a/m-", nil, zk.FlagSequence, all)
		s.tell("of another", made, err)
		s.tell("deleted", b.Delete(made, -1))
	}
	names, stat, err := b.Children("/a")
	s.tell("in all", names, stat, err)
	_, stat, err = b.Get("/a/" + names[0])
	s.tell("ephemeral", stat, err)
	_, err = b.Create("/a/"+names[0]+"/x", nil, 0, all)
	s.tell("below an ephemeral one", err)
}

func (s *teller) watches(a, b *zk.Conn) {
	_, err := a.Create("/w", nil, 0, all)
	s.tell("watched", err)
	_, _, data, err := a.GetW("/w")
	s.tell("watch data", err)
	_, _, _, err = a.GetW("/none")
	s.tell("watch data of nothing", err)
	_, _, exists, err := a.ExistsW("/w/x")
	s.tell("watch what is to be", err)
	_, _, children, err := a.ChildrenW("/w")
	s.tell("watch children", err)
	_, err = b.Create("/w/x", nil, zk.FlagEphemeral, all)
	s.tell("made", err)
	s.hears("is there", exists)
	s.hears("children", children)
	s.silent("data", data)
	_, err = b.Set("/w", []byte("x"), -1)
	s.tell("changed", err)
	s.hears("data", data)
	_, _, gone, err := a.GetW("/w/x")
	s.tell("watch the end", err)
	_, _, below, err := a.ChildrenW("/w/x")
	s.tell("and below", err)
	s.tell("delete", b.Delete("/w/x", -1))
	s.hears("gone", gone)
	s.hears("gone below", below)
	_, _, again, err := a.ExistsW("/w/x")
	s.tell("once more", err)
	_, err = b.Create("/w/x", nil, 0, all)
	s.tell("made", err)
	s.hears("there", again)
}

func (s *teller) transactions(c *zk.Conn) {
	answers := func(what string, got []zk.MultiResponse, err error) {
		line := []any{err}
		for _, r := range got {
			line = append(line, r.String, r.Error, r.Stat)
		}
		s.tell(what, line...)
	}
	got, err := c.Multi(&zk.SetDataRequest{Path: "/w", Data: []byte("y"), Version: -1}, &zk.DeleteRequest{Path: "/w/x", Version: -1})
	answers("both", got, err)
	got, err = c.Multi(&zk.SetDataRequest{Path: "/w", Data: []byte("z"), Version: -1}, &zk.DeleteRequest{Path: "/w/x", Version: -1})
	answers("neither", got, err)
	data, stat, err := c.Get("/w")
	s.tell("as it was", data, stat, err)
	create := &zk.CreateRequest{Path: "/w/y", Acl: all}
	got, err = c.Multi(create, &zk.DeleteRequest{Path: "/w/y", Version: 0}, create, &zk.SetDataRequest{Path: "/w/y", Data: []byte("y"), Version: 0})
	answers("one after the other", got, err)
	got, err = c.Multi(&zk.DeleteRequest{Path: "/w/y", Version: -1}, create, create)
	answers("not twice", got, err)
	data, stat, err = c.Get("/w/y")
	s.tell("as it was", data, stat, err)
}

// ends: what a session has made for itself goes with it.
func (s *teller) ends(a *zk.Conn) {
	c, _ := s.session(long)
	made, err := c.Create("/w/mine", nil, zk.FlagEphemeral, all)
	s.tell("made", made, err)
	_, _, gone, err := a.GetW("/w/mine")
	s.tell("watched", err)
	_, _, children, err := a.ChildrenW("/w")
	s.tell("and its parent", err)
	c.Close()
	s.hears("closed", gone)
	s.hears("and its parent", children)
	_, _, err = a.Get("/w/mine")
	s.tell("gone", err)
}

// comesBack: a session that has another connection hears what it has missed.
func (s *teller) comesBack(a, b *zk.Conn, l *link) {
	_, err := a.Create("/s", nil, 0, all)
	s.tell("made", err)
	for _, name := range []string{"stays", "changes", "goes"} {
		_, err := a.Create("/s/"+name, nil, 0, all)
		s.tell("made", err)
	}
	watch := func(name string) <-chan zk.Event {
		_, _, events, err := a.GetW("/s/" + name)
		s.tell("watched", err)
		return events
	}
	stays, changes, goes := watch("stays"), watch("changes"), watch("goes")
	_, _, comes, err := a.ExistsW("/s/comes")
	s.tell("watched", err)
	_, _, below, err := a.ChildrenW("/s")
	s.tell("watched", err)
	l.away(func() {
		_, err := b.Set("/s/changes", []byte("x"), -1)
		s.tell("changed", err)
		s.tell("deleted", b.Delete("/s/goes", -1))
		_, err = b.Create("/s/comes", nil, 0, all)
		s.tell("made", err)
	})
	s.hears("changed", changes)
	s.hears("gone", goes)
	s.hears("there", comes)
	s.hears("below", below)
	s.silent("stays", stays)
	_, err = b.Set("/s/stays", []byte("x"), -1)
	s.tell("changed", err)
	s.hears("no more", stays)
}

// expires: a session that is away for too long has lost what it had.
func (s *teller) expires(b *zk.Conn) {
	a, l := s.session(short)
	_, err := a.Create("/s/mine", nil, zk.FlagEphemeral, all)
	s.tell("made", err)
	_, _, gone, err := b.GetW("/s/mine")
	s.tell("watched", err)
	_, _, lost, err := a.GetW("/s/stays")
	s.tell("watched", err)
	l.away(func() { s.hears("expired", gone) })
	s.hears("lost", lost)
}
