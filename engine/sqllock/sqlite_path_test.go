package sqllock

import (
	"cmp"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// Only descriptors with the database's name are looked at. Any other may lead to a file server that
// no longer answers.
func TestOnlyDescriptorsOfTheNameAreAsked(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("descriptors are not listed here")
	}
	dir := t.TempDir()
	path, gone, other := filepath.Join(dir, "locks.db"), filepath.Join(t.TempDir(), "locks.db"), filepath.Join(dir, "other.db")
	linked := filepath.Join(dir, "link.db")
	if err := os.Symlink(path, linked); err != nil {
		t.Fatal(err)
	}
	files := make(map[string]os.FileInfo)
	for _, name := range []string{path, gone, other} {
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if files[name], err = f.Stat(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	all, ok := openAs(path)
	isAsked := func(name string) bool {
		return slices.ContainsFunc(all, func(one os.FileInfo) bool { return os.SameFile(one, files[name]) })
	}
	if !ok || !isAsked(path) || !isAsked(gone) || isAsked(other) {
		t.Errorf("asked: %s %v, one that was deleted %v, another name %v; %v", path, isAsked(path), isAsked(gone), isAsked(other), ok)
	}
	for _, name := range []string{path, linked} {
		if f, err := openFile(name, ""); err != nil || !f.isOpen() {
			t.Errorf("%s is not open: %v", name, err)
		}
	}
	closed := filepath.Join(t.TempDir(), "locks.db")
	if err := os.WriteFile(closed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := openFile(closed, ""); err != nil || f.isOpen() {
		t.Errorf("%s is open, although only files of the same name are: %v", closed, err)
	}
}

// A file that is open is found to be deleted also if it had another name by then.
func TestDeletedFileIsFoundByAnyName(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("open files cannot be deleted there")
	}
	path := filepath.Join(t.TempDir(), "locks.db-wal")
	for _, name := range []string{path, path + "-other"} { // the name under which it is deleted
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if heldDeleted(path, info) {
			t.Error("a file is deleted that has a name")
		}
		if err := cmp.Or(os.Rename(path, name), os.Remove(name)); err != nil {
			t.Fatal(err)
		}
		if !heldDeleted(path, info) {
			t.Errorf("deleted as %s: not found", name)
		}
	}
}
