package zklock

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"
)

// Anybody can create nodes: their names are claims in one order, or alien.
func FuzzNodes(f *testing.F) {
	for _, s := range []string{"", "config", "0000000042", "lock--000000001", "_c_-lock-0000000001", "_c_0123456789abcdef0123456789abcdef-limit-2-weight-3-lock-0000000001", "a-limit--5-__READ__0000000001/b-__READ__-000000002/c-lock-0000000003"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, names string) {
		nodes, err := parseNodes(strings.Split(names, "/"))
		if err != nil {
			if !errors.Is(err, ErrAlien) {
				t.Errorf("%v; want ErrAlien", err)
			}
			return
		}
		if n := holding(nodes, 0); n < 1 || n > len(nodes) {
			t.Errorf("%d of %d hold", n, len(nodes))
		}
	})
}

// Whatever a node contains, somebody is behind it.
func FuzzDetails(f *testing.F) {
	for _, s := range []string{"", "{}", "null", "[1]", `{"owner":"a"}`, `{"owner":1}`, `{"lingers":true}`, "\xff"} {
		f.Add([]byte(s), "_c_0123456789abcdef0123456789abcdef-lock-0000000001")
	}
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		n, err := parseNode(name)
		if err != nil {
			return
		}
		lingers(data)
		if h := (content{data, &zk.Stat{}}).holder(n); h.Owner.Reveal() == "" {
			t.Errorf("nobody is behind %q", name)
		}
	})
}
