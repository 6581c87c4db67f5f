package driver

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxName is the longest resource name in bytes. It is a bound of this package: long enough for
// paths, short enough to escape into every engine's key.
const MaxName = 512

// CheckName returns nil for a valid resource name, or an error that wraps [ErrInvalidName] and
// says why. Names are non-empty UTF-8 of at most [MaxName] bytes without control characters
// (Unicode category Cc).
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: empty", ErrInvalidName)
	case len(name) > MaxName:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrInvalidName, len(name), MaxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: not UTF-8", ErrInvalidName)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("%w: control character in %q", ErrInvalidName, name)
	}
	return nil
}

// MaxNote is the longest note in bytes: enough for a line about the holder or the result of a
// job, and far below every engine's limit.
const MaxNote = 4096

// CheckNote returns nil for a note that every engine can store: UTF-8 of at most [MaxNote] bytes
// without NUL.
func CheckNote(note string) error {
	switch {
	case len(note) > MaxNote:
		return fmt.Errorf("a note of %d bytes, at most %d", len(note), MaxNote)
	case !utf8.ValidString(note):
		return errors.New("a note that is not UTF-8")
	case strings.Contains(note, "\x00"):
		return errors.New("a note that contains NUL")
	}
	return nil
}
