// Package mutant breaks a package on purpose, to show that its tests notice. All mutations are
// compiled into one test binary, and the sources stay unchanged. An environment variable chooses a
// mutation.
package mutant

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A Mutation replaces a piece of text of a package.
type Mutation struct {
	Name     string // a single word
	Rejects  string // the test that must fail, in the form of -test.run
	File     string
	Old, New string // Old occurs once in File; $ stands for the condition that this mutation was chosen

	Undoes string // the fix or the rule that the mutation undoes, for Find
	Unseen string // why Find does not find it; "": it must
}

// env tells the binary which mutation was chosen.
const env = "LEASEHOLD_MUTATION"

// Chosen reports whether this is a binary with a mutation.
func Chosen() bool { return os.Getenv(env) != "" }

// choice is a file that is added to the package.
const choice = `package %s

import "os"

func mutated(name string) bool { return os.Getenv("` + env + `") == name }

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

var _ = count
`

// A Binary contains the tests of a package, and all mutations of another.
type Binary struct{ path string }

// Build compiles the tests in the folder tests, with the mutations in the folder source, whose
// package is name. If a mutation no longer fits the source, the test fails: adapt the mutation.
func Build(t testing.TB, tests, source, name string, all []Mutation) Binary {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs the go command")
	}
	dir := t.TempDir()
	source, err := filepath.Abs(source)
	if err != nil {
		t.Fatal(err)
	}
	replace := make(map[string]string)
	for file, text := range texts(t, source, name, all) {
		replace[filepath.Join(source, file)] = filepath.Join(dir, file)
		write(t, filepath.Join(dir, file), []byte(text))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "overlay.json"), overlay)
	b := Binary{filepath.Join(dir, "mutant.test")}
	build := exec.Command("go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", b.path, ".")
	build.Dir = tests
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	return b
}

// texts returns the files of the package with all mutations in them.
func texts(t testing.TB, source, name string, all []Mutation) map[string]string {
	t.Helper()
	texts := map[string]string{"mutated.go": fmt.Sprintf(choice, name)}
	for _, m := range all {
		if texts[m.File] == "" {
			text, err := os.ReadFile(filepath.Join(source, m.File))
			if err != nil {
				t.Fatal(err)
			}
			texts[m.File] = string(text)
		}
		if n := strings.Count(texts[m.File], m.Old); n != 1 {
			t.Errorf("mutation %s: %q occurs %d times in %s, want once: bring it up to date", m.Name, m.Old, n, m.File)
			continue
		}
		chosen := `mutated("` + m.Name + `")`
		texts[m.File] = strings.Replace(texts[m.File], m.Old, strings.ReplaceAll(m.New, "$", chosen), 1)
	}
	return texts
}

func write(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A Run is the result of a test with a mutation.
type Run struct {
	Failed bool
	Out    string
	CPU    time.Duration // processor time of the test and its children
}

// Run runs the test that m names, with these flags, once.
func (b Binary) Run(m Mutation, flags ...string) Run {
	return b.run(m, exec.Command(b.path, b.args(m, flags)...))
}

func (b Binary) args(m Mutation, flags []string) []string {
	return append(flags, "-test.run="+m.Rejects, "-test.v")
}

func (b Binary) run(m Mutation, cmd *exec.Cmd) Run {
	cmd.Env = append(os.Environ(), env+"="+m.Name)
	out, err := cmd.CombinedOutput()
	r := Run{Failed: err != nil && strings.Contains(string(out), "--- FAIL: "), Out: string(out)}
	if s := cmd.ProcessState; s != nil {
		r.CPU = s.UserTime() + s.SystemTime()
	}
	return r
}

// Rejects fails t unless the test that m names, with these flags, fails with m.
func (b Binary) Rejects(t testing.TB, m Mutation, flags ...string) {
	t.Helper()
	var r Run
	for tries := 0; !r.Failed && tries < 3; tries++ { // on a busy machine, the test may see the effect too late
		r = b.Run(m, flags...)
	}
	if !r.Failed {
		t.Errorf("%s accepts it:\n%s", m.Rejects, r.Out)
	}
	t.Logf("%s", r.Out)
}
