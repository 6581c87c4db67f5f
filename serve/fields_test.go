package serve_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// A field that is repeated, or spelt differently, is refused: a proxy in between might read the
// other one.
func TestFieldsAreSaidOnce(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	for _, body := range []string{
		`{"name":"a","name":"b","ttl_ms":1000}`, `{"name":"a","n\u0061me":"b","ttl_ms":1000}`, `{"name":"a","NAME":"b","ttl_ms":1000}`,
		`{"Name":"a","ttl_ms":1000}`, `{"name":"a","ttl_m\u017f":1000}`, `{"name":"a","ttl_ms":1000,"ttl_ms":60000}`,
	} {
		if a := s.post(wire.Acquire, "%s", body); a.status != 400 || a.Code != wire.CodeInvalid {
			t.Errorf("%s: %d %s", body, a.status, a.text)
		}
	}
	path := filepath.Join(t.TempDir(), "access")
	for text, want := range map[string]bool{
		`{"clients":[{"name":"a","rules":[{"prefix":"x/","rights":["lock"]}]}]}`:                        true,
		`{"clients":[{"name":"a","rules":[{"prefix":"x/","prefix":"","rights":["lock"]}]}]}`:            false,
		`{"clients":[{"name":"a","rules":[],"Rules":[{"prefix":"","rights":["lock"]}]}]}`:               false,
		`{"clients":[{"name":"a","rules":[{"prefix":"x/","rights":["lock"]}]}],"clients":[]}`:           false,
		`{"clients":[{"name":"a","tokens":[],"rules":[]},{"name":"b","tokens":[],"rules":[]}]}`:         true,
		`{"clients":[{"name":"a","rules":[{"prefix":"x/","rights":["lock"]}],"rules":[]},{"name":""}]}`: false,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := serve.ReadAccess(path, nil); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// If a release of its owner ends a wait, the answer does not say that the place is kept.
func TestReleasedWaitHasNoPlace(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	s.post(wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`).want(t, 200, "")
	told := make(chan answer, 1)
	go func() {
		got, _ := post(s.url+wire.Acquire, `{"name":"n","owner":"w","ttl_ms":60000,"wait_ms":20000}`)
		told <- got
	}()
	eventually(t, "it waits", func() bool { return len(s.state("n").Waiters) == 1 })
	s.post(wire.Release, `{"name":"n","owner":"w"}`).want(t, 200, "")
	if got := (<-told).want(t, 409, "superseded"); got.Queued || strings.Contains(got.text, "holds it") {
		t.Errorf("told %s", got.text)
	}
	if left := s.state("n").Waiters; len(left) > 0 {
		t.Errorf("left in the queue: %v", left)
	}
}
