package servers

import (
	"os"
	"testing"
)

// Copied returns a copy of a folder, removed when t ends. The server whose data it has must not
// run, or must only append to files.
func Copied(t testing.TB, dir string) string {
	t.Helper()
	to := DataDir(t)
	PutBack(t, to, dir)
	return to
}

// PutBack replaces the contents of dir by a copy of from.
func PutBack(t testing.TB, dir, from string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatalf("delete %s: %v", dir, err)
	}
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatalf("copy to %s: %v", dir, err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}
