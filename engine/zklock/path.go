package zklock

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"
)

// reserved is ZooKeeper's own node below the root.
const reserved = "zookeeper"

// escape turns a name into one element of a path. Characters that a path must not have are escaped
// byte by byte, as in a URL. All others stay, so that names can match other clients' paths.
func escape(name string, inRoot bool) string {
	var b strings.Builder
	whole := name == "." || name == ".." || inRoot && name == reserved
	for i, r := range name {
		size := utf8.RuneLen(r)
		if !whole && !needsEscape(r) {
			b.WriteString(name[i : i+size])
			continue
		}
		for _, c := range []byte(name[i : i+size]) {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// needsEscape follows the checks of the server (PathUtils.validatePath), which sees characters
// beyond the basic plane as two surrogates.
func needsEscape(r rune) bool {
	return r == '/' || r == '%' || r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0
}

// unescape reverses escape. ok is false for an element that escape never writes.
func unescape(element string, inRoot bool) (name string, ok bool) {
	name, err := url.PathUnescape(element)
	return name, err == nil && utf8.ValidString(name) && escape(name, inRoot) == element
}

// cleanPath returns path with one slash before each element and none at the end; "" and "/"
// are "".
func cleanPath(path string) (string, error) {
	var b strings.Builder
	for element := range strings.SplitSeq(path, "/") {
		if element == "" {
			continue
		}
		if element == "." || element == ".." || strings.ContainsFunc(element, func(r rune) bool { return r != '%' && needsEscape(r) }) {
			return "", errors.New("an element is . or .. or has a character that no path may have")
		}
		b.WriteString("/" + element)
	}
	return b.String(), nil
}
