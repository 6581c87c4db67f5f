// Package described holds what real clients and instances of "leasehold serve" say to each other
// against the OpenAPI description that the service hands out. A balancer records it, and it is
// judged when the test has ended, so that nothing is slower or in another order for it.
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

// Balance puts a recording balancer before instances, and returns its address. All that passes is
// judged at the end of t, and what is not as the description says fails it.
func Balance(t testing.TB, targets ...string) (addr string) {
	t.Helper()
	dir := Folder(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := proxy.BalanceAt(l, Record(dir), targets...)
	t.Cleanup(b.Close)
	return b.Addr()
}

// Folder is for records of any process, which are judged at the end of t.
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

// Record keeps each connection in two files of dir.
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

// failing ends the connection that cannot be recorded.
type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
func (f failing) Close() error              { return nil }

// Folder judges all connections that were recorded in dir.
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
