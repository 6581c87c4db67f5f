package caslock

import (
	"fmt"
	"strconv"
	"strings"
)

// Escape escapes a name for a store that does not accept every character. All bytes but ASCII
// letters, digits and those in plain become =XX. The key of a name's prefix is a prefix of the
// name's key.
func Escape(name, plain string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte(plain, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String()
}

// Unescape reverses [Escape]. It reports false for a key that Escape never returns.
func Unescape(key, plain string) (name string, ok bool) {
	var b strings.Builder
	for rest := key; rest != ""; rest = rest[1:] {
		c := rest[0]
		if c == '=' && len(rest) > 2 {
			n, err := strconv.ParseUint(rest[1:3], 16, 8)
			if err != nil {
				return "", false
			}
			c, rest = byte(n), rest[2:]
		}
		b.WriteByte(c)
	}
	return b.String(), Escape(b.String(), plain) == key
}
