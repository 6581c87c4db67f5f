// Package apart runs a test in a process of its own, beside the other tests of its package.
package apart

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// testEnv is set in a process that runs one test; its value is the test's name.
const testEnv = "LEASEHOLD_TEST_APART"

// Run runs test, which must be all that t does, in another process, beside the tests of this one.
// It is for the conformance suite, which counts the goroutines of its process and waits most of the
// time.
func Run(t *testing.T, test func(t *testing.T)) { RunSome(t, "", test) }

// RunSome is like Run, for the parts of test whose names begin as the pattern says, unless -run
// names others.
func RunSome(t *testing.T, parts string, test func(t *testing.T)) {
	switch os.Getenv(testEnv) {
	case t.Name():
		test(t)
		return
	case "":
	default: // otherwise each process would start others
		t.Skip("this process is for another test")
	}
	var out bytes.Buffer
	ended := make(chan error, 1)
	go func() {
		places <- struct{}{}
		ended <- run(t.Name(), parts, &out)
		<-places
	}()
	t.Parallel() // from here on, so that the other process does not wait for sequential tests
	err := <-ended
	if testing.Verbose() {
		_, _ = os.Stdout.Write(inner(out.Bytes(), t.Name()))
	}
	if err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
}

// places limit the processes that run at once, because more would slow each other down.
var places = make(chan struct{}, 2)

// run runs a test of this binary in another process until it has ended.
func run(test, parts string, out *bytes.Buffer) error {
	cmd := exec.Command(os.Args[0], arguments(test, parts)...)
	cmd.Env = append(os.Environ(), testEnv+"="+test)
	cmd.Stdout, cmd.Stderr = out, out
	ended, err := servers.Start(cmd)
	if err != nil {
		return err
	}
	return <-ended
}

// arguments returns the arguments of the process for one test: this process's limit, and the parts
// that -run names, or else parts.
func arguments(test, parts string) []string {
	args := []string{"-test.run=" + patternOf(test, parts, flag.Lookup("test.run").Value.String())}
	flag.Visit(func(f *flag.Flag) {
		switch {
		case f.Name == "test.v", f.Name == "test.timeout", f.Name == "test.short", !strings.HasPrefix(f.Name, "test."):
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	return args
}

// patternOf returns the part of -run that concerns one test: of alternatives that name parts, those
// that match it.
func patternOf(test, parts, asked string) string {
	path := strings.Split(test, "/")
	exact := make([]string, len(path))
	for i, name := range path {
		exact[i] = "^" + regexp.QuoteMeta(name) + "$"
	}
	var all []string
	for _, one := range split(asked, '|') {
		names := split(one, '/')
		matches := true
		for i, name := range path[:min(len(path), len(names))] {
			ok, err := regexp.MatchString(names[i], name)
			matches = matches && (ok || err != nil)
		}
		if !matches {
			continue
		}
		if len(names) > len(path) {
			all = append(all, strings.Join(append(exact[:len(path):len(path)], names[len(path):]...), "/"))
		} else { // all parts
			if parts != "" {
				exact = append(exact, "^("+parts+")")
			}
			return strings.Join(exact, "/")
		}
	}
	return strings.Join(all, "|")
}

// split splits a pattern of -run at top level, like go test: not within brackets.
func split(pattern string, at byte) []string {
	var all []string
	depth, start := 0, 0
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case c == '(' || c == '[':
			depth++
		case c == ')' || c == ']':
			depth--
		case c == at && depth == 0:
			all, start = append(all, pattern[start:i]), i+1
		}
	}
	return append(all, pattern[start:])
}

// inner returns the output of a test's parts. It omits the lines that begin and end the test
// itself, because its own process prints them too.
func inner(out []byte, test string) []byte {
	names := regexp.QuoteMeta(test)
	if outer, _, ok := strings.Cut(test, "/"); ok {
		names += "|" + regexp.QuoteMeta(outer)
	}
	whole := regexp.MustCompile(`^\x16? *(=== (RUN|NAME|PAUSE|CONT) +(` + names + `)|--- (PASS|FAIL|SKIP): (` + names + `) .*|PASS|FAIL)\n?$`)
	var kept []byte
	for line := range bytes.Lines(out) {
		if !whole.Match(line) {
			kept = append(kept, line...)
		}
	}
	return kept
}
