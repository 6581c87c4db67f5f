package s3lock

import (
	"encoding/base64"
	"strings"

	"github.com/leasehold-go/leasehold/engine/caslock"
)

const (
	// maxPrefix leaves room for the longest name in a key of 1,024 bytes, the limit of S3.
	maxPrefix = 200
	// maxEscaped is the longest escaped name that is used as a key. Longer ones are encoded in
	// base64.
	maxEscaped = 700
	// maxPart is the longest part of a key between slashes. Stores that keep files allow 255.
	maxPart = 200

	plain  = "-_"    // the characters that names keep beside letters and digits
	long   = "~"     // begins the key of a long name
	suffix = ".json" // so that no key is a folder of another
)

// keyOf returns the key of a name, without the prefix.
func keyOf(name string) string {
	key := caslock.Escape(name, plain)
	if len(key) > maxEscaped {
		key = long + base64.RawURLEncoding.EncodeToString([]byte(name))
	}
	return parted(key) + suffix
}

// parted inserts slashes into a key so that no part is too long.
func parted(key string) string {
	var b strings.Builder
	for ; len(key) > maxPart; key = key[maxPart:] {
		b.WriteString(key[:maxPart] + "/")
	}
	return b.String() + key
}

// nameOf reverses keyOf. It reports false for a key that keyOf never returns.
func nameOf(key string) (name string, ok bool) {
	text := strings.ReplaceAll(strings.TrimSuffix(key, suffix), "/", "")
	if coded, ok := strings.CutPrefix(text, long); ok {
		b, err := base64.RawURLEncoding.DecodeString(coded)
		if err != nil {
			return "", false
		}
		name = string(b)
	} else if name, ok = caslock.Unescape(text, plain); !ok {
		return "", false
	}
	return name, keyOf(name) == key
}
