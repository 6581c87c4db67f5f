package main

import (
	"database/sql"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

func TestListShowsHoldersAndWaiters(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.wantRun(0, "free", "--", "true")
	empty := c.want(0, "ls")
	if empty.stdout != "" {
		t.Errorf("an empty store lists %q", empty.stdout)
	}
	contains(t, empty.stderr, "No lock is held", c.store)
	if o := c.want(0, "ls", "--json"); o.stdout != "[]\n" {
		t.Errorf("an empty store lists %q", o.stdout)
	}

	l := c.acquire("--note", "nightly \x1b]0;evil\x07 run\u202e", "job")
	s1, s2 := c.acquire("-s", "web/1"), c.acquire("-s", "web/1")
	c.acquire("web")
	c.wait("first")
	c.until("a waiter", func(v stateView) bool { return len(v.Waiters) == 1 })
	c.wait("second")
	c.until("two waiters", func(v stateView) bool { return len(v.Waiters) == 2 })

	plainList := c.want(0, "ls").stdout
	contains(t, plainList, "NAME", "OWNER", "job", "exclusive", l.Owner[:8], "nightly ]0;evil run", "shared", s1.Owner[:8], s2.Owner[:8])
	if strings.ContainsAny(plainList, "\x1b\x07\u202e") || strings.Contains(plainList, l.Owner) || strings.Count(plainList, "\n") != 5 {
		t.Errorf("ls prints %q", plainList)
	}
	var views []stateView
	contains(t, c.want(0, "ls", "we b").stderr, "No lock whose name starts with we b is held", c.store)
	c.want(0, "ls", "--json", "web").json(t, &views)
	if len(views) != 2 || views[0].Name != "web" || views[1].Name != "web/1" || len(views[1].Holders) != 2 || views[1].Holders[0].Mode != "shared" {
		t.Errorf("ls web: %+v", views)
	}

	var v stateView
	o := c.want(0, "show", "--json", "job")
	o.json(t, &v)
	if strings.Contains(o.stdout, l.Owner) {
		t.Error("show prints the whole owner")
	}
	h := v.Holders[0]
	if v.Token != l.Token || h.Token != l.Token || h.Owner != l.Owner[:8] || h.Mode != "exclusive" || h.Left <= 0 || h.Left > 60 || h.Held < 0 || h.Note != "nightly ]0;evil run" {
		t.Errorf("show: %+v, want the lease %+v", v, l)
	}
	if v.Waiters[0].Note != "first" || v.Waiters[1].Note != "second" || v.Waiters[0].Waited <= 0 {
		t.Errorf("the queue: %+v", v.Waiters)
	}
	text := c.want(0, "show", "job").stdout
	contains(t, text, "job is held", l.Owner[:8], "HOLDER", "WAITER")
	if strings.Index(text, "first") > strings.Index(text, "second") || strings.Contains(text, l.Owner) {
		t.Errorf("show prints:\n%s", text)
	}

	c.want(0, "release", "web/1", s1.Owner)
	c.want(0, "release", "web/1", s2.Owner)
	contains(t, c.want(0, "show", "web/1").stdout, "web/1 is free, last token")
	contains(t, c.want(0, "show", "never").stdout, "never is free")
}

// wait starts a waiter for "job" that lives as long as the test.
func (c *cli) wait(note string) {
	c.t.Helper()
	cmd := exec.Command(binary, "acquire", "--note", note, "job")
	cmd.Env = append(os.Environ(), "LEASEHOLD_STORE="+c.store)
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
}

func TestTopPipedIsOneSnapshot(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.acquire("job")
	o := c.want(0, "top")
	contains(t, o.stdout, "NAME", "job")
	if strings.Contains(o.stdout, "\x1b") {
		t.Errorf("top writes control sequences into a pipe: %q", o.stdout)
	}
	var v []stateView
	c.want(0, "top", "--json").json(t, &v)
	if len(v) != 1 || v[0].Name != "job" {
		t.Errorf("top --json: %+v", v)
	}
}

func TestEvict(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	l := c.acquire("job")
	other := c.acquire("other")

	// Nobody to ask: nothing happens.
	contains(t, c.want(64, "evict", "job", "--owner", l.Owner[:8], "--reason", "hangs").stderr, "--yes", l.Owner[:8])
	c.want(0, "renew", "job", l.Owner)
	// Not the holder: neither.
	contains(t, c.want(75, "evict", "job", "--owner", other.Owner, "--reason", "hangs", "--yes").stderr, "does not hold")
	c.want(75, "evict", "job", "--owner", l.Owner[:7], "--reason", "hangs", "--yes")
	c.want(75, "evict", "free", "--owner", l.Owner[:8], "--reason", "hangs", "--yes")
	c.want(0, "renew", "job", l.Owner)

	o := c.want(0, "evict", "job", "--owner", l.Owner[:8], "--reason", "hangs", "--yes")
	contains(t, o.stdout, "evicted "+l.Owner[:8], "next token is larger", "next renewal or release")
	if strings.Contains(o.stdout+o.stderr, l.Owner) {
		t.Error("evict prints the whole owner")
	}
	c.want(75, "renew", "job", l.Owner)
	next := c.acquire("-n", "job")
	if next.Token <= l.Token {
		t.Errorf("token %d after the eviction of %d", next.Token, l.Token)
	}
	var v map[string]any
	c.want(0, "evict", "--json", "job", "--owner", next.Owner, "--reason", "hangs", "-y").json(t, &v)
	if v["evicted"] != true || v["owner"] != next.Owner[:8] {
		t.Errorf("evict --json: %v", v)
	}
	c.want(0, "renew", "other", other.Owner)
}

func TestEvictOfSharersWithOneStart(t *testing.T) {
	t.Parallel()
	state := leasehold.State{Resource: "r", Holders: []leasehold.Holder{{Owner: driver.OwnerOf("AAAAAAAA11111111")}, {Owner: driver.OwnerOf("AAAAAAAA22222222")}, {Owner: driver.OwnerOf("BBBBBBBB11111111")}}}
	for owner, want := range map[string]string{"AAAAAAAA11111111": "AAAAAAAA11111111", "BBBBBBBB": "BBBBBBBB11111111", "AAAAAAAA": "", "A": "", "AAAAAAAA111111112": ""} {
		h, err := (&eviction{name: "r", owner: owner}).holder(&app{}, state)
		if h.Owner.Reveal() != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v, want %q", owner, h.Owner.Reveal(), err, want)
		}
	}
}

// What somebody has damaged in the store is named, and hides nothing else.
func TestListShowsWhatIsNotDamaged(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.acquire("broken")
	fine := c.acquire("fine")
	db, err := sql.Open("sqlite", strings.TrimPrefix(c.store, "sqlite:"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("UPDATE leasehold_locks SET record = '[' WHERE name = 'broken'"); err != nil {
		t.Fatal(err)
	}
	o := c.want(exitUnavailable, "ls")
	contains(t, o.stdout, "fine", fine.Owner[:8])
	contains(t, o.stderr, `"broken"`, "damaged")
	contains(t, c.want(exitUnavailable, "show", "broken").stderr, `"broken"`, "damaged")
	if o := c.call("show", "-q", "broken"); o.code != 1 { // its lease was read
		t.Errorf("show -q: exit code %d: %s", o.code, o.stderr)
	}
	c.want(0, "show", "fine")
	if _, err := db.Exec("UPDATE leasehold_locks SET record = '[', expires = 0 WHERE name = 'broken'"); err != nil {
		t.Fatal(err)
	}
	contains(t, c.want(exitUnavailable, "show", "-q", "broken").stderr, "damaged")
	for _, text := range []string{
		"UPDATE leasehold_locks SET crowd = NOW + 3600000000 WHERE name = 'broken'",
		"INSERT INTO leasehold_places VALUES ('broken', NOW, 'waiter', 'process', 0, 0, 0, '')",
		"INSERT INTO leasehold_beats VALUES ('process', NOW + 3600000000, 1)",
	} {
		if _, err := db.Exec(strings.ReplaceAll(text, "NOW", "CAST(unixepoch('subsec') * 1000000 AS INTEGER)")); err != nil {
			t.Fatal(err)
		}
	}
	o = c.want(exitUnavailable, "ls")
	contains(t, o.stderr, `"broken"`, "damaged")
	if strings.Contains(o.stdout, "broken") {
		t.Errorf("who waits for it is told, and so that it is free:\n%s", o.stdout)
	}
	for _, flag := range []string{"-v", "--json"} { // whether it is free is not known
		if o := c.call("show", flag, "broken"); o.code != exitUnavailable || o.stdout != "" || !strings.Contains(o.stderr, "damaged") {
			t.Errorf("show %s: exit code %d, %q, %q", flag, o.code, o.stdout, o.stderr)
		}
	}
	// Nor is it known whether any lock is held.
	c.want(0, "release", "fine", fine.Owner)
	for _, flags := range []string{"-v", "--json", "--sort=name", "--host=x"} {
		o := c.call("ls", flags)
		if o.code != exitUnavailable || o.stdout != "" || strings.Contains(o.stderr, "No lock") || strings.Contains(o.stderr, "all there are") {
			t.Errorf("ls %s: exit code %d, %q, %q", flags, o.code, o.stdout, o.stderr)
		}
	}
}

func TestShowTellsByItsExitCode(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	l := c.acquire("job")
	if o := c.call("show", "--quiet", "job"); o.code != 1 || o.stdout+o.stderr != "" {
		t.Errorf("held: exit code %d, %q%q", o.code, o.stdout, o.stderr)
	}
	c.want(0, "release", "job", l.Owner)
	if o := c.call("show", "-q", "job"); o.code != 0 || o.stdout+o.stderr != "" {
		t.Errorf("free: exit code %d, %q%q", o.code, o.stdout, o.stderr)
	}
	c.store = "redis://127.0.0.1:1"
	c.want(69, "show", "-q", "job")
}

// Names that look like others are quoted, and characters that do not show are escaped.
func TestNamesThatLookAlike(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"发布/1":           "发布/1",
		"a\u200b":        `"a\u200b"`,
		"a\u3164":        `"a\u3164"`, // a letter that does not show
		"发布\u2764\ufe0f": `"发布❤\ufe0f"`,
		"a\ufffd":        `"a\ufffd"`,
		"a ":             `"a "`,
		`"a"`:            `"\"a\""`,
	} {
		if got := shown(name); got != want {
			t.Errorf("shown(%+q) = %s, want %s", name, got, want)
		}
	}
}
