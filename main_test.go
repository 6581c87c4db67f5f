package leasehold_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// newLocker returns a Locker that the test closes.
func newLocker(t *testing.T, d driver.Driver, opts *leasehold.Options) *leasehold.Locker {
	t.Helper()
	l, err := leasehold.New(d, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// newFaulty returns a memory driver behind a link that can fail.
func newFaulty(t *testing.T, s *memory.Server) *locktest.Faulty {
	f := locktest.NewFaulty(s.Connect())
	t.Cleanup(func() { f.Close() })
	return f
}

func acquire(t *testing.T, l *leasehold.Locker, name string, opts ...leasehold.Option) *leasehold.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), name, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want one that matches %v", err, want)
	}
}

func wantDuration(t *testing.T, what string, got, least, most time.Duration) {
	t.Helper()
	if got < least || got > most {
		t.Fatalf("%s: %v, want %v to %v", what, got, least, most)
	}
}

func TestRootModuleRequiresNothing(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, directive := range []string{"require", "replace", "tool"} {
		if bytes.Contains(mod, []byte(directive)) {
			t.Errorf("go.mod has a %s directive; the root module uses the standard library only", directive)
		}
	}
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range strings.FieldsSeq(string(out)) {
		if !strings.HasPrefix(pkg, "github.com/leasehold-go/leasehold") {
			t.Errorf("the root module imports %s", pkg)
		}
	}
}

func TestCoreImportsNoEngine(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := "github.com/leasehold-go/leasehold/driver github.com/leasehold-go/leasehold/internal/boottime github.com/leasehold-go/leasehold/internal/details github.com/leasehold-go/leasehold/internal/onecall github.com/leasehold-go/leasehold/internal/pages github.com/leasehold-go/leasehold/internal/schedule github.com/leasehold-go/leasehold/internal/several github.com/leasehold-go/leasehold/internal/waiting github.com/leasehold-go/leasehold"
	if got := strings.Join(strings.Fields(string(out)), " "); got != want {
		t.Errorf("the core is made of %s, want %s", got, want)
	}
}
