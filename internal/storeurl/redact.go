package storeurl

import "strings"

// maxScheme is the greatest length of a wrong URL's scheme that is repeated to the user.
const maxScheme = 20

// validScheme reports whether s is a short scheme as in RFC 3986.
func validScheme(s string) bool {
	for i, c := range []byte(strings.ToLower(s)) {
		letter := 'a' <= c && c <= 'z'
		if !letter && (i == 0 || !strings.ContainsRune("0123456789+-.", rune(c))) {
			return false
		}
	}
	return s != "" && len(s) <= maxScheme
}

// WithoutPassword returns a URL from Resolve with the user and without the password.
func WithoutPassword(resolved string) string {
	scheme, rest, _ := strings.Cut(resolved, ":")
	if scheme == "sqlite" { // a path, which may contain anything
		return resolved
	}
	before, options, _ := strings.Cut(rest, "?")
	at := strings.LastIndexByte(before, '@')
	if at < 0 {
		return resolved
	}
	user, _, _ := strings.Cut(strings.TrimPrefix(before[:at], "//"), ":")
	if user != "" {
		user += "@"
	}
	if options != "" {
		options = "?" + options
	}
	return scheme + "://" + user + before[at+1:] + options
}

// HasPassword reports whether the valid URL url contains a password.
func HasPassword(url string) bool {
	scheme, rest, _ := strings.Cut(url, ":")
	before, _, _ := strings.Cut(rest, "?")
	at := strings.LastIndexByte(before, '@')
	if at < 0 || strings.EqualFold(scheme, "sqlite") {
		return false
	}
	_, password, _ := strings.Cut(strings.TrimPrefix(before[:at], "//"), ":")
	return password != ""
}

// hidden replaces what Redact omits.
const hidden = "***"

// Redact returns url in a form that may be printed. It works on the text, so that a malformed
// URL is safe too. In doubt it hides more: the whole part before an @, and everything after the
// first of "?", "#" and "=".
func Redact(url string) string {
	scheme, rest, ok := strings.Cut(url, ":")
	if !ok || !validScheme(scheme) {
		return hidden
	}
	at, cut := strings.LastIndexByte(rest, '@'), strings.IndexAny(rest, "?#=")
	if at > cut && cut >= 0 {
		// This is a password with a "?", or an option with an "@". Which one is unknown.
		return scheme + ":" + hidden
	}
	if cut >= 0 {
		rest = rest[:cut+1] + hidden
	}
	if at >= 0 {
		slashes := rest[:len(rest)-len(strings.TrimLeft(rest, "/"))]
		rest = slashes + hidden + rest[at:]
	}
	return scheme + ":" + rest
}
