package servers

import (
	"os"
	"testing"
)

// Copied is a copy of a folder, that goes with t: the data of a server that does not run, or only appends to it.
func Copied(t testing.TB, dir string) string {
	t.Helper()
	to := DataDir(t)
	PutBack(t, to, dir)
	return to
}

// PutBack replaces what is in dir by a copy of what is in from.
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
