// Package described checks what real clients and instances of "leasehold serve" exchange against
// the OpenAPI description that the service serves. A proxy records the exchanges. They are checked
// when the test has ended, so that the check does not slow or reorder them.
package described

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/proxy"
)

// Balance starts a recording load balancer for instances, and returns its address. At the end of t,
// all exchanges are checked. One that differs from the description fails t.
func Balance(t testing.TB, targets ...string) (addr string) {
	t.Helper()
	dir := Folder(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := proxy.ListenAt(l, Record(dir), targets...)
	t.Cleanup(b.Close)
	return b.Addr()
}

// Folder returns a folder for records of any process. They are checked at the end of t.
func Folder(t testing.TB) (dir string) {
	t.Helper()
	dir = t.TempDir()
	t.Cleanup(func() {
		j := New(t)
		j.Folder(dir)
		j.Report()
	})
	return dir
}

const askedIn, answeredIn = ".asked", ".answered"

// Record writes each connection to two files in dir.
func Record(dir string) proxy.Record {
	return func() (asked, answered io.WriteCloser) {
		a, err := os.CreateTemp(dir, "*"+askedIn)
		if err != nil {
			return failing{err}, failing{err}
		}
		b, err := os.Create(strings.TrimSuffix(a.Name(), askedIn) + answeredIn)
		if err != nil {
			return a, failing{err}
		}
		return a, b
	}
}

// failing ends a connection that cannot be recorded.
type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
func (f failing) Close() error              { return nil }

// Folder checks all connections that were recorded in dir.
func (j *Judge) Folder(dir string) {
	j.t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"+askedIn))
	if err != nil {
		j.t.Fatal(err)
	}
	for _, file := range files {
		asked, err := os.ReadFile(file)
		if err != nil {
			j.t.Fatal(err)
		}
		answered, err := os.ReadFile(strings.TrimSuffix(file, askedIn) + answeredIn)
		if err != nil {
			j.t.Fatal(err)
		}
		all, err := exchanges(asked, answered)
		if err != nil {
			j.t.Errorf("what was said cannot be read: %v", fmt.Errorf("%s: %w", filepath.Base(file), err))
		}
		for _, e := range all {
			j.judge(e)
		}
	}
}
