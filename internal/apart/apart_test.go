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

// Only some parts run, unless -run names others.
func TestSomePartsRun(t *testing.T) {
	for pattern, want := range map[string]string{"^TestSome$": "part", "^TestSome$/one": "one"} {
		out, err := exec.Command(os.Args[0], "-test.run="+pattern, "-test.v").CombinedOutput()
		if n := strings.Count(string(out), "=== RUN   TestSome/"); err != nil || n != 1 || !strings.Contains(string(out), "--- PASS: TestSome/"+want) {
			t.Errorf("-run %s: %v; want part %s:\n%s", pattern, err, want, out)
		}
	}
}

// A failure there is a failure here. The output of each part appears once, and parts that -run
// omits do not run.
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

// What a -run for several tests means for the one that runs alone.
func TestPatternOf(t *testing.T) {
	for _, test := range []struct{ asked, parts, want string }{
		{"", "", "^TestA$/^one$"},
		{"TestA", "", "^TestA$/^one$"},
		{"TestA", "p|q", "^TestA$/^one$/^(p|q)"},
		{"TestA/one/part", "p|q", "^TestA$/^one$/part"},
		{"^Test(A|B)$/^(one|two)$/^(p|q)$", "", "^TestA$/^one$/^(p|q)$"},
		{"part|A/one/part", "", "^TestA$/^one$/part"},
		{"part|A/one/part|A/o/rest|A/two/rest", "", "^TestA$/^one$/part|^TestA$/^one$/rest"},
		{"A/one/part|TestA", "", "^TestA$/^one$"},
	} {
		if got := patternOf("TestA/one", test.parts, test.asked); got != test.want {
			t.Errorf("-run %s, parts %q: %s; want %s", test.asked, test.parts, got, test.want)
		}
	}
}

// The process for one test starts no others, whatever -run says.
func TestNoProcessBeginsOthers(t *testing.T) {
	run := exec.Command(os.Args[0], "-test.run=^Test(Run|Inner)$", "-test.v")
	run.Env = append(os.Environ(), testEnv+"=TestRun")
	out, err := run.CombinedOutput()
	if n := strings.Count(string(out), "--- SKIP: TestInner/"); err != nil || n != 2 || !strings.Contains(string(out), "--- PASS: TestRun/part") {
		t.Errorf("%v\n%s", err, out)
	}
}
