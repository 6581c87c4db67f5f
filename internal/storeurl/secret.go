package storeurl

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/reread"
)

// A Secret is a password or a similar secret. The zero value is none.
type Secret struct {
	text string
	file *reread.Files[string] // nil: the secret is text
}

// Text returns a secret that does not change.
func Text(text string) Secret { return Secret{text: text} }

// errEmpty is the error of an empty file, which somebody may be about to write.
var errEmpty = errors.New("the file is empty")

// ReadSecret reads a secret from the file at path, without the newline at its end.
func ReadSecret(path string) (Secret, error) {
	file, err := reread.New(0, nil, func(texts [][]byte) (string, error) {
		text := strings.TrimRight(string(texts[0]), "\r\n")
		if text == "" {
			return "", errEmpty
		}
		return text, nil
	}, path)
	return Secret{file: file}, err
}

// Now returns the secret for a new connection.
func (s Secret) Now() string {
	if s.file != nil {
		return s.file.Get()
	}
	return s.text
}

// IsSet reports whether there is a secret.
func (s Secret) IsSet() bool { return s.file != nil || s.text != "" }

// Changes reports whether the secret may change.
func (s Secret) Changes() bool { return s.file != nil }

// String and GoString keep the secret out of printed text.
func (Secret) String() string   { return hidden }
func (Secret) GoString() string { return hidden }

// loginPause is how long a refusal of a login counts. Four attempts a second lock no user out.
const loginPause = 250 * time.Millisecond

// Logins limits how often a server that has refused the password is asked again. While the file has
// the old password, every call would try it once more. The zero value is ready.
type Logins struct {
	mu      sync.Mutex
	refused error     // guarded by mu; nil: the last login was not refused
	next    time.Time // guarded by mu; when to ask again after one
}

// Begin returns the last refusal while it is recent, or nil if a login should be tried. Ended
// must follow.
func (l *Logins) Begin() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused == nil {
		return nil
	}
	if time.Now().Before(l.next) {
		return l.refused
	}
	l.next = time.Now().Add(loginPause) // lets one of the others try at a time
	return nil
}

// Ended records the result of a login, and whether err is the server's refusal. A login that its
// caller gave up does not count.
func (l *Logins) Ended(err error, refused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case refused:
		l.refused, l.next = err, time.Now().Add(loginPause)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	default:
		l.refused = nil
	}
}
