// Package identifier reports which names are plain SQL identifiers. It uses no regular
// expression, because compiling one with a count is among the slowest steps of a program's
// start.
package identifier

import "strings"

// Plain reports whether name consists of at most most ASCII letters, digits and underscores, and
// does not begin with a digit.
func Plain(name string, most int) bool {
	return name != "" && len(name) <= most && (name[0] < '0' || name[0] > '9') &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == ""
}
