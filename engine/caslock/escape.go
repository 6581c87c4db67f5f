package caslock

import (
	"fmt"
	"strconv"
	"strings"
)

// Escape is a name as a store may take it that takes not every character: all but ASCII's letters and
// digits, and what stands in plain, is written =XX. The beginning of a name becomes that of its key.
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

// Unescape is the reverse of [Escape]; false: it never returns this.
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
