package apart

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

const failEnv = "LEASEHOLD_TEST_APART_FAILS"

func TestRun(t *testing.T) {
	Run(t, func(t *testing.T) {
		if os.Getenv(testEnv) == "" {
			t.Error("it runs in the process that began it")
		}
		t.Run("part", func(t *testing.T) {
			if os.Getenv(failEnv) != "" {
				t.Error("as asked")
			}
		})
		t.Run("other", func(*testing.T) {})
	})
}

func TestInner(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"one", "two"} {
		t.Run(name, func(t *testing.T) {
			Run(t, func(t *testing.T) { t.Run(name+" part", func(*testing.T) {}) })
		})
	}
}

func TestSome(t *testing.T) {
	RunSome(t, "par|rest", func(t *testing.T) {
		for _, name := range []string{"part", "one", "other"} {
			t.Run(name, func(*testing.T) {})
		}
	})
}

// Some parts are all that run, but where -run asks for others.
func TestSomePartsRun(t *testing.T) {
	for pattern, want := range map[string]string{"^TestSome$": "part", "^TestSome$/one": "one"} {
		out, err := exec.Command(os.Args[0], "-test.run="+pattern, "-test.v").CombinedOutput()
		if n := strings.Count(string(out), "=== RUN   TestSome/"); err != nil || n != 1 || !strings.Contains(string(out), "--- PASS: TestSome/"+want) {
			t.Errorf("-run %s: %v; want part %s:\n%s", pattern, err, want, out)
		}
	}
}

// What fails there fails here, and what ran there is told once, and nothing that -run leaves out.
func TestFailureAndPartsAreTold(t *testing.T) {
	for _, fails := range []bool{false, true} {
		run := exec.Command(os.Args[0], "-test.run=^Test(Run|Inner)$/^(part|one)$", "-test.v")
		if fails {
			run.Env = append(os.Environ(), failEnv+"=1")
		}
		out, err := run.CombinedOutput()
		if (err != nil) != fails {
			t.Errorf("%v; want a failure: %v\n%s", err, fails, out)
		}
		for text, want := range map[string]int{
			"=== RUN   TestRun\n": 1, "=== RUN   TestRun/part\n": 1, "TestRun/other": 0,
			"=== RUN   TestInner\n": 1, "=== RUN   TestInner/one\n": 1, "=== RUN   TestInner/one/one_part\n": 1, "TestInner/two": 0,
		} {
			if n := strings.Count(string(out), text); n != want && !fails {
				t.Errorf("%q is there %d times, want %d:\n%s", text, n, want, out)
			}
		}
	}
}
