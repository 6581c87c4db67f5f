package natslock

import (
	"cmp"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/engine/caslock"
)

// plain is the characters that names keep beside letters and digits. They leave a name one token.
const plain = "-_/"

func (s *store) subject(key string) string { return "$KV." + s.bucket + "." + key }

const (
	parted = "\x00" // separates the parts of a name
	nobody = "="    // the token of an empty first part; no name has it
)

// keyOf returns a key with a token for each part of a name.
func keyOf(name string) string {
	first, second, two := strings.Cut(name, parted)
	if !two {
		return caslock.Escape(name, plain)
	}
	return cmp.Or(caslock.Escape(first, plain), nobody) + "." + caslock.Escape(second, plain)
}

// nameOf reverses keyOf. It reports false for a key that is not ours.
func nameOf(key string) (name string, ok bool) {
	first, second, two := strings.Cut(key, ".")
	switch {
	case !two:
		return caslock.Unescape(key, plain)
	case first != nobody:
		name, ok = caslock.Unescape(first, plain)
		ok = ok && name != ""
	default:
		ok = true
	}
	rest, also := caslock.Unescape(second, plain)
	return name + parted + rest, ok && also
}

// prefix returns the beginning of the subjects of calls, with its dot.
func (s *store) prefix() string {
	opts := s.js.Options()
	if opts.Domain != "" {
		return "$JS." + opts.Domain + ".API."
	}
	prefix := cmp.Or(opts.APIPrefix, jetstream.DefaultAPIPrefix)
	return strings.TrimSuffix(prefix, ".") + "."
}

// prefixed returns a subject of the bucket as it is published to. If calls have a prefix, as in
// another domain, so has the subject, because a bucket of the same name may be near.
func (s *store) prefixed(subject string) string {
	if prefix := s.prefix(); prefix != jetstream.DefaultAPIPrefix {
		return prefix + subject
	}
	return subject
}
