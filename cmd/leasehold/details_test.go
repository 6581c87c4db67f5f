//go:build linux

package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func hostname() string {
	name, _ := os.Hostname()
	return name
}

// shown is what show --json tells of name.
func (c *cli) shown(name string) (v stateView) {
	c.t.Helper()
	c.want(0, "show", "--json", name).json(c.t, &v)
	return v
}

// run, lead and acquire tell who holds, and what for.
func TestDetailsOfHolders(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	flags := []string{"--note", "nightly", "--link", "https://a.example/1?b=c;d", "--label", "team=payments", "--label", "a b=x=y;\u2063 z"}
	c.start(append(append([]string{"run"}, flags...), "by-run", "--", "sleep", "60")...)
	c.start(append(append([]string{"lead"}, flags...), "by-lead", "--", "sleep", "60")...)
	c.acquire(append(flags, "by-acquire")...)
	for name, want := range map[string]struct{ program, kind string }{"by-run": {"sleep", ""}, "by-lead": {"sleep", ""}, "by-acquire": {"script", "manual"}} {
		eventually(t, name, func() bool { return len(c.shown(name).Holders) == 1 })
		h := c.shown(name).Holders[0]
		d := h.Details
		if d.Host != hostname() || d.PID == 0 || d.User == "" || d.Program != want.program || d.Kind != want.kind || (d.Started == "") != (want.kind == "manual") ||
			d.Link != "https://a.example/1?b=c;d" || d.Text != "nightly" || h.Note != "nightly" || len(d.Labels) != 2 || d.Labels["team"] != "payments" || d.Labels["a b"] != "x=y; z" {
			t.Errorf("%s: %+v, %+v", name, h, d)
		}
		contains(t, c.want(0, "show", name).stdout, name+" is held", "nightly", hostname(), "https://a.example/1?b=c;d", "team=payments", want.program+"[")
	}
	contains(t, c.call("run", "-n", "by-run", "--", "true").stderr, "held by nightly on "+hostname())
}

// A finished job tells its exit code.
func TestDetailsOfAFinishedJob(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.wantRun(3, "--once-per", "1h", "--label", "team=payments", "--label", "exit=none", "plain", "--", "sh", "-c", "exit 3")
	c.wantRun(0, "--at-least", "1h", "--note", "nightly", "noted", "--", "true")
	for name, want := range map[string]struct{ text, exit string }{"plain": {"sh[", "3"}, "noted": {"nightly (exit code 0 after ", "0"}} {
		v := c.shown(name)
		d := v.Holders[0].Details
		if v.State != "done" || d.Kind != "once" || d.Labels["exit"] != want.exit || d.Host != hostname() || !strings.HasPrefix(d.Text, want.text) || !strings.Contains(d.Text, "(exit code "+want.exit+" after ") {
			t.Errorf("%s: %+v, %+v", name, v, d)
		}
		contains(t, c.want(0, "show", name).stdout, name+" is done, not free until ")
		contains(t, c.call("run", "-n", name, "--", "true").stderr, "kept after "+want.text, "which is done")
	}
	if d := c.shown("plain").Holders[0].Details; d.Labels["team"] != "payments" {
		t.Errorf("%+v", d)
	}
}

// In a CI job the link is the job's page, unless another is given or it is none.
func TestLinkOfACIJob(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env  []string
		args []string
		want string
	}{
		"GitHub":   {[]string{"GITHUB_SERVER_URL=https://github.com", "GITHUB_REPOSITORY=a/b", "GITHUB_RUN_ID=17"}, nil, "https://github.com/a/b/actions/runs/17"},
		"GitLab":   {[]string{"CI_JOB_URL=https://gitlab.example/a/-/jobs/17"}, nil, "https://gitlab.example/a/-/jobs/17"},
		"Jenkins":  {[]string{"BUILD_URL=http://jenkins:8080/job/a/17/"}, nil, "http://jenkins:8080/job/a/17/"},
		"another":  {[]string{"CI_JOB_URL=https://gitlab.example/a/-/jobs/17"}, []string{"--link", "https://b.example/"}, "https://b.example/"},
		"no link":  {[]string{"BUILD_URL=javascript:alert(1)"}, nil, ""},
		"password": {[]string{"BUILD_URL=https://user:" + canary + "@a.example/"}, nil, ""},
		"no job":   {nil, nil, ""},
		"no room":  {[]string{"BUILD_URL=https://a.example/"}, []string{"--note", strings.Repeat("x", 4096)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			c.env = []string{"GITHUB_SERVER_URL=", "GITHUB_REPOSITORY=", "GITHUB_RUN_ID=", "CI_JOB_URL=", "BUILD_URL=", "BUILDKITE_BUILD_URL=", "CIRCLE_BUILD_URL="}
			c.env = append(c.env, tc.env...)
			c.acquire(append(tc.args, "job")...)
			if link := c.shown("job").Holders[0].Details.Link; link != tc.want {
				t.Errorf("the link is %q, want %q", link, tc.want)
			}
		})
	}
}

func TestBadDetailsAreRefused(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, args := range [][]string{
		{"--link", "javascript:alert(1)"}, {"--link", "a.example"}, {"--link", ""}, {"--label", "a"}, {"--label", "=a"}, {"--label", ""}, {"--label", "a=1", "--label", "a=2"},
		{"--label", "a=\xff"}, {"--note", "\xff"}, {"--label", "a=" + strings.Repeat("x", 4096)}, {"--note", strings.Repeat("x", 4097)},
	} {
		c.want(exitUsage, append(append([]string{"acquire"}, args...), "x")...)
		c.want(exitUsage, append(append([]string{"run"}, args...), "x", "--", "touch", "ran")...)
		c.want(exitUsage, append(append([]string{"lead"}, args...), "x", "--", "touch", "ran")...)
	}
	c.missing("ran")
	if _, err := os.Stat(filepath.Join(c.dir, "locks.db")); err == nil {
		t.Error("the store was made")
	}
}

// fleet takes a few locks that differ in all that ls sorts and selects by.
func (c *cli) fleet() {
	c.t.Helper()
	c.acquire("--ttl", "3h", "--label", "team=payments", "--label", "env=live", "c")
	c.acquire("--ttl", "1h", "--label", "team=payments", "a")
	c.acquire("--ttl", "2h", "job")
	c.wait("first")
	c.until("a waiter", func(v stateView) bool { return len(v.Waiters) == 1 })
}

func (c *cli) listed(args ...string) (names string) {
	c.t.Helper()
	var views []stateView
	c.want(0, append([]string{"ls", "--json"}, args...)...).json(c.t, &views)
	for _, v := range views {
		names += v.Name + " "
	}
	return names
}

func TestListSorts(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.fleet()
	for by, want := range map[string]string{"name": "a c job ", "held": "c a job ", "left": "a job c ", "waiting": "job a c ", "host": "a c job "} {
		if got := c.listed("--sort", by); got != want {
			t.Errorf("--sort %s: %s, want %s", by, got, want)
		}
	}
	o := c.want(0, "ls", "--sort", "left", "--limit", "2")
	if strings.Count(o.stdout, "\n") != 3 || strings.Contains(o.stdout, "\nc ") {
		t.Errorf("the first two are %s", o.stdout)
	}
	contains(t, o.stderr, "looked at 3 locks, all there are")
	contains(t, c.want(0, "ls", "--json", "--sort", "held").stderr, `"event":"looked"`)
	if o := c.want(0, "ls"); o.stderr != "" {
		t.Errorf("unsorted: %s", o.stderr)
	}
	for _, wrong := range []string{"--sort x", "--sort", "--sort name --after x", "--watch --sort name", "--watch --csv", "--label x", "--label =x", "--watch --host x"} {
		c.want(exitUsage, append([]string{"ls"}, strings.Fields(wrong)...)...)
	}
	if o := c.call("ls", "--csv", "--json"); o.code != exitUsage {
		t.Errorf("--csv --json: exit code %d", o.code)
	}
}

func TestListSelects(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.fleet()
	for args, want := range map[string]string{
		"--label team=payments": "a c ", "--label team=payments --label env=live": "c ", "--label team=other": "", "--label env=": "",
		"--host " + hostname(): "a c job ", "--host nowhere": "", "--held-longer-than 1h": "", "--held-longer-than 1ms": "a c job ",
		"--held-longer-than 1ms --label env=live": "c ", "--label team=payments --limit 1": "a ", "--label env=live --limit 1 --sort name": "c ",
	} {
		if got := c.listed(strings.Fields(args)...); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
	contains(t, c.want(0, "ls", "--label", "env=live").stderr, "looked at 3 locks, all there are; 1 matches")
	contains(t, c.want(0, "ls", "--host", "nowhere").stderr, "all there are; 0 match")
	o := c.want(0, "ls", "--label", "team=payments", "--limit", "1")
	contains(t, o.stderr, "looked at 1 lock; 1 matches", "go on with --after ")
	contains(t, c.want(0, "ls", "--label", "env=live", "--limit", "1").stderr, "looked at 2 locks; 1 matches", "go on with --after ")
	_, next, _ := strings.Cut(strings.TrimSpace(o.stderr), "--after ")
	if got := c.listed("--label", "team=payments", "--after", next); got != "c " {
		t.Errorf("after it: %q", got)
	}
}

// CSV is as RFC 4180 says, and no spreadsheet calculates with what others wrote.
func TestListAsCSV(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.acquire("--note", `=HYPERLINK("http://evil","x")`, "--label", "@a=1", "--label", "b=x, y", "@formula")
	c.acquire("--slots", "2", "--note", "two\nlines", `"quoted", name`)
	c.fleet()
	o := c.want(0, "ls", "--csv")
	if strings.Count(o.stdout, "\n") != strings.Count(o.stdout, "\r\n") {
		t.Errorf("lines end otherwise: %q", o.stdout)
	}
	records, err := csv.NewReader(strings.NewReader(o.stdout)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]map[string]string{}
	for _, record := range records[1:] {
		row := map[string]string{}
		for i, head := range records[0] {
			row[head] = record[i]
			if strings.IndexAny(record[i], "=+-@") == 0 {
				t.Errorf("%s is a formula: %q", head, record[i])
			}
		}
		rows[row["name"]] = row
	}
	if len(records) != 6 {
		t.Errorf("%d records: %q", len(records), o.stdout)
	}
	if r := rows["'@formula"]; r["holder"] != `'=HYPERLINK("http://evil","x")` || r["labels"] != "'@a=1 b=x, y" || r["state"] != "held" || r["mode"] != "exclusive" || r["kind"] != "manual" || r["host"] != hostname() {
		t.Errorf("%q", r)
	}
	if r := rows[strconv.Quote(`"quoted", name`)]; r["holder"] != "twolines" || r["limit"] != "2" || r["mode"] != "shared" {
		t.Errorf("%q", r)
	}
	if r := rows["job"]; r["waiting"] != "1" || len(r["owner"]) != 8 {
		t.Errorf("%q", r)
	}
	if n, err := strconv.ParseFloat(rows["c"]["left_seconds"], 64); err != nil || n < 10_000 || n > 10_800 {
		t.Errorf("c: %q", rows["c"])
	}
	for text, want := range map[string]string{"": "", "a=b": "a=b", "=1": "'=1", "＝1": "'＝1", "-": "'-", "'=": "'="} {
		if got := unformulated(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	var b bytes.Buffer
	writeCSV(&b, []stateView{{Name: "a", Holders: []holderView{{Owner: "=1+1"}}}}, false)
	if !strings.Contains(b.String(), ",'=1+1,") {
		t.Errorf("an owner is a formula: %q", b.String())
	}
	if o := c.want(0, "ls", "--csv", "nothing/"); strings.Count(o.stdout, "\n") != 1 {
		t.Errorf("of nothing: %q", o.stdout)
	}
}

// Shared locks show how many slots are taken. A lock kept for a finished job shows until when.
func TestStatesOfLocks(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for range 3 {
		c.acquire("--slots", "4", "gpu")
	}
	c.wantRun(0, "--once-per", "1h", "report", "--", "true")
	c.acquire("job")
	list := c.want(0, "ls").stdout
	contains(t, list, "gpu     3 of 4  ", "report  done    ", "job     held    ")
	if strings.Contains(list, "free") {
		t.Errorf("%s", list)
	}
	contains(t, c.want(0, "show", "gpu").stdout, "gpu is held, 3 of 4")
	for name, want := range map[string]string{"gpu": "held", "report": "done", "job": "held", "never": "free"} {
		if v := c.shown(name); v.State != want {
			t.Errorf("%s is %q", name, v.State)
		}
	}
	if v := (stateView{Holders: []holderView{{Owner: "x", Details: detailsView{Kind: "reserved"}}}}); v.stateText() != "reserved" || fmt.Sprint(v.until()) != "" {
		t.Errorf("%q", v.stateText())
	}
}
