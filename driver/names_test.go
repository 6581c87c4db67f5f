package driver_test

import (
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/driver"
)

func FuzzCheckName(f *testing.F) {
	for _, name := range []string{"", "a", "a/b", "{a}", "é", "e\u0301", "\x00", "a\r\nb", "\xc3", strings.Repeat("x", 513)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		valid := name != "" && len(name) <= 512 && utf8.ValidString(name)
		for _, r := range name {
			valid = valid && !unicode.IsControl(r)
		}
		err := driver.CheckName(name)
		if valid != (err == nil) || err != nil && !errors.Is(err, driver.ErrInvalidName) {
			t.Errorf("CheckName(%q) = %v", name, err)
		}
	})
}
