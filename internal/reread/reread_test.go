package reread_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/reread"
)

// joined accepts texts that all begin with the same letter.
func joined(texts [][]byte) (string, error) {
	var all []string
	for _, t := range texts {
		if len(t) == 0 || t[0] != texts[0][0] {
			return "", errors.New("they do not match")
		}
		all = append(all, string(t))
	}
	return strings.Join(all, "+"), nil
}

// An invalid change leaves the former value, and is reported once.
func TestChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(a, "1a")
	write(b, "1b")
	told := 0
	f, err := reread.New(0, func(error) { told++ }, joined, a, b)
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		change func()
		want   string
		told   int
	}{
		{func() {}, "1a+1b", 0},
		{func() { write(a, "2a") }, "1a+1b", 1}, // the other file follows
		{func() { write(b, "2b") }, "2a+2b", 1},
		{func() { write(a, "") }, "2a+2b", 2},
		{func() { os.Remove(b) }, "2a+2b", 3},
		{func() { write(a, "3a") }, "2a+2b", 3}, // it is still missing, which was reported
		{func() { write(b, "3b") }, "3a+3b", 3},
		{func() { os.Remove(a) }, "3a+3b", 4},
		{func() { write(a, "3a") }, "3a+3b", 4}, // unchanged
	} {
		step.change()
		for range 2 {
			if got := f.Get(); got != step.want || told != step.told {
				t.Errorf("step %d: %q, told %d times; want %q, %d", i, got, told, step.want, step.told)
			}
		}
	}
}

// The first reading must succeed.
func TestFirstReading(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a")
	if f, err := reread.New(0, nil, joined, path); f != nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, %v", f, err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := reread.New(0, nil, joined, path); f != nil || err == nil {
		t.Errorf("%v, %v", f, err)
	}
}

// A check is valid for the given time.
func TestEvery(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a")
	synctest.Test(t, func(t *testing.T) {
		if err := os.WriteFile(path, []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := reread.New(time.Second, nil, joined, path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("2"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"1", "2"} {
			time.Sleep(600 * time.Millisecond)
			if got := f.Get(); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
	})
}
