// Package identifier tells which names may stand in SQL as they are. It uses no regular expression:
// one that counts is among what costs a program most before its main.
package identifier

// Plain reports whether name is made of letters of ASCII, digits and underscores, of at most most in all,
// and begins with no digit.
func Plain(name string, most int) bool {
	if name == "" || len(name) > most || name[0] >= '0' && name[0] <= '9' {
		return false
	}
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_':
		default:
			return false
		}
	}
	return true
}
