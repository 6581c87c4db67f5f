// Package identifier reports which names are plain SQL identifiers. It uses no regular
// expression, because compiling one with a count is among the slowest steps of a program's
// start.
package identifier

// Plain reports whether name consists of at most most ASCII letters, digits and underscores, and
// does not begin with a digit.
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
