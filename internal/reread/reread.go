// Package reread keeps the contents of files, and reads them again when they change. An invalid
// change keeps the former value. While a file is replaced, it may be missing, empty or half
// written for a moment, and a certificate may appear before its key.
package reread

import (
	"bytes"
	"os"
	"slices"
	"sync"
	"time"
)

// Files are the contents of some files, as a T.
type Files[T any] struct {
	paths  []string
	parse  func(texts [][]byte) (T, error)
	every  time.Duration
	failed func(error)

	mu      sync.Mutex // held while the files are read
	value   T          // guarded by mu
	texts   [][]byte   // guarded by mu; the texts that were last parsed
	looked  time.Time  // guarded by mu
	missing bool       // guarded by mu; a file could not be read when last looked at
}

// New reads the files for the first time. every is how long a check of them is valid; 0: each
// Get checks. failed, unless it is nil, is called once for each invalid change. parse makes a value
// of their contents, in the order of paths.
func New[T any](every time.Duration, failed func(error), parse func(texts [][]byte) (T, error), paths ...string) (*Files[T], error) {
	if failed == nil {
		failed = func(error) {}
	}
	f := &Files[T]{paths: paths, parse: parse, every: every, failed: failed, looked: time.Now()}
	texts, err := f.read()
	if err != nil {
		return nil, err
	}
	f.texts = texts
	f.value, err = parse(texts)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Get returns the contents of the files, or the last valid ones. Without files, that is the zero T.
func (f *Files[T]) Get() (none T) {
	if f == nil {
		return none
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) < f.every {
		return f.value
	}
	f.looked = time.Now()
	texts, err := f.read()
	if err != nil {
		if !f.missing {
			f.failed(err)
		}
		f.missing = true
		return f.value
	}
	f.missing = false
	if slices.EqualFunc(texts, f.texts, bytes.Equal) { // not their times and lengths, which another file may share
		return f.value
	}
	f.texts = texts
	if value, err := f.parse(texts); err != nil {
		f.failed(err)
	} else {
		f.value = value
	}
	return f.value
}

func (f *Files[T]) read() ([][]byte, error) {
	texts := make([][]byte, len(f.paths))
	for i, path := range f.paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		texts[i] = text
	}
	return texts, nil
}
