package sqllock

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
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
	at := make(map[string]string) // the descriptor of each file
	for _, name := range []string{path, gone, other} {
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		at[name] = descriptors + strconv.Itoa(int(f.Fd()))
	}
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, linked} {
		asked, err := descriptorsOf(name)
		if err != nil || !slices.Contains(asked, at[path]) || !slices.Contains(asked, at[gone]) || slices.Contains(asked, at[other]) {
			t.Errorf("%s: %q are asked, %v; the files are %v", name, asked, err, at)
		}
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
