package identifier

import (
	"regexp"
	"strings"
	"testing"
)

// TestPlainIsWhatItSays compares Plain with an equivalent regular expression.
func TestPlainIsWhatItSays(t *testing.T) {
	t.Parallel()
	same := regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,39}$`)
	names := []string{"", strings.Repeat("a", 40), strings.Repeat("a", 41), "a\n", "é", "K", "ﬀ", "a.b", `a"b`}
	for a := range 256 {
		names = append(names, string([]byte{byte(a)}), string([]byte{'a', byte(a)}), string([]byte{byte(a), 'a'}))
	}
	for _, name := range names {
		if got, want := Plain(name, 40), same.MatchString(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
