//go:build linux

package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A release tags the commit that was tested. If there is another one by then, it tags nothing, and
// leaves that one alone.
func TestReleaseTagsWhatWasTested(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		run    string // what stands in for every test
		top    string // the subjects afterwards
		tagged string
		fails  bool
	}{
		"passed":              {":", "Release v0.1.0 first", "Release v0.1.0", false},
		"failed":              {"exit 1", "first", "", true},
		"passed, HEAD moved":  {"git commit -q --allow-empty -m other", "other Release v0.1.0 first", "", true},
		"failed, HEAD moved":  {"git commit -q --allow-empty -m other; exit 1", "other Release v0.1.0 first", "", true},
		"passed, HEAD behind": {"git reset -q --hard HEAD^", "first", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := releasable(t, c.run)
			out, err := dir.call("scripts/release", "v0.1.0")
			if (err != nil) != c.fails {
				t.Errorf("%v: %s", err, out)
			}
			if got := strings.ReplaceAll(dir.git("log", "--format=%s"), "\n", " "); got != c.top {
				t.Errorf("commits %q, want %q: %s", got, c.top, out)
			}
			tags := dir.git("for-each-ref", "--format=%(refname:short) %(*subject)", "refs/tags")
			want := ""
			if c.tagged != "" {
				want = "engine/x/v0.1.0 " + c.tagged + "\nv0.1.0 " + c.tagged
			}
			if tags != want {
				t.Errorf("tags %q, want %q: %s", tags, want, out)
			}
		})
	}
}

// A release that cannot be taken back, or that cannot be made, leaves nothing unsaid.
func TestReleaseThatFails(t *testing.T) {
	t.Parallel()
	t.Run("tests change a file of the release", func(t *testing.T) {
		t.Parallel()
		dir := releasable(t, "echo changed >>CHANGELOG.md; exit 1")
		before := dir.git("rev-parse", "HEAD")
		if out, err := dir.call("scripts/release", "v0.1.0"); err == nil || !strings.Contains(out, "git reset --hard "+before) {
			t.Errorf("%v: it does not say how to take the commit back: %s", err, out)
		}
	})
	t.Run("the version cannot be set", func(t *testing.T) {
		t.Parallel()
		dir := releasable(t, ":")
		dir.put("scripts/set-version", "#!/bin/sh\necho changed >>CHANGELOG.md; echo >scripts/go.mod.new; exit 1\n")
		dir.git("commit", "-q", "-a", "-m", "second")
		if out, err := dir.call("scripts/release", "v0.1.0"); err == nil || dir.git("status", "--porcelain") != "" {
			t.Errorf("%v: the tree is not as it was: %s", err, out)
		}
	})
	t.Run("a module has the tag", func(t *testing.T) {
		t.Parallel()
		dir := releasable(t, ":")
		dir.git("tag", "engine/x/v0.1.0")
		out, err := dir.call("scripts/release", "v0.1.0")
		if tags := dir.git("tag"); err == nil || tags != "engine/x/v0.1.0" || dir.git("log", "--format=%s") != "first" {
			t.Errorf("%v: tags %q: %s", err, tags, out)
		}
	})
}

// A repository is one that scripts/release can release, with stand-ins for what it calls.
type repository struct {
	t   *testing.T
	dir string
}

// releasable returns a repository whose tests are the shell script run.
func releasable(t *testing.T, run string) *repository {
	t.Helper()
	r := &repository{t, t.TempDir()}
	for _, script := range []string{"scripts/release", "scripts/tag-all"} {
		text, err := os.ReadFile("../../" + script)
		if err != nil {
			t.Fatal(err)
		}
		r.put(script, string(text))
	}
	r.put("scripts/set-version", "#!/bin/sh\n")
	r.put("scripts/modules", "#!/bin/sh\necho .\necho engine/x\n")
	r.put(".ci/run", "#!/bin/sh\n"+run+"\n")
	r.put("CHANGELOG.md", "## Unreleased\n")
	r.git("init", "-q")
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "first")
	return r
}

func (r *repository) put(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		r.t.Fatal(err)
	}
}

func (r *repository) call(program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "HOME="+r.dir, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@localhost",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@localhost")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (r *repository) git(args ...string) string {
	r.t.Helper()
	out, err := r.call("git", args...)
	if err != nil {
		r.t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return out
}
