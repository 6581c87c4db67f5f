package driver

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxName is the longest resource name in bytes. It is the design's own bound: long
// enough for paths, short enough to escape into every engine's key.
const MaxName = 512

// CheckName returns nil for a valid resource name, else an error that wraps
// ErrInvalidName and says why: names are non-empty UTF-8 of at most MaxName bytes
// without control characters (Unicode category Cc).
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

// ShortOwner is what of an owner may be printed: its first 8 bytes. Whoever knows the
// whole owner can release the lease.
func ShortOwner(owner string) string {
	if len(owner) > 8 {
		return owner[:8]
	}
	return owner
}
