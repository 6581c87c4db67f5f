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
			dir := t.TempDir()
			put := func(name, text string) {
				t.Helper()
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			for _, script := range []string{"scripts/release", "scripts/tag-all"} {
				text, err := os.ReadFile("../../" + script)
				if err != nil {
					t.Fatal(err)
				}
				put(script, string(text))
			}
			put("scripts/set-version", "#!/bin/sh\n")
			put("scripts/modules", "#!/bin/sh\necho .\necho engine/x\n")
			put(".ci/run", "#!/bin/sh\n"+c.run+"\n")
			put("CHANGELOG.md", "## Unreleased\n")
			call := func(program string, args ...string) (string, error) {
				cmd := exec.Command(program, args...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "HOME="+dir, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@localhost",
					"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@localhost")
				out, err := cmd.CombinedOutput()
				return strings.TrimSpace(string(out)), err
			}
			git := func(args ...string) string {
				t.Helper()
				out, err := call("git", args...)
				if err != nil {
					t.Fatalf("git %q: %v: %s", args, err, out)
				}
				return out
			}
			git("init", "-q")
			git("add", "-A")
			git("commit", "-q", "-m", "first")
			out, err := call("scripts/release", "v0.1.0")
			if (err != nil) != c.fails {
				t.Errorf("%v: %s", err, out)
			}
			if got := strings.ReplaceAll(git("log", "--format=%s"), "\n", " "); got != c.top {
				t.Errorf("commits %q, want %q: %s", got, c.top, out)
			}
			tags := git("for-each-ref", "--format=%(refname:short) %(*subject)", "refs/tags")
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
