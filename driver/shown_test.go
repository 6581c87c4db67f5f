package driver_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unicode"

	"github.com/leasehold-go/leasehold/driver"
)

func TestShortOwner(t *testing.T) {
	for owner, want := range map[string]string{
		"": "", "x": "?", "me": "m", "job-1": "job", "0123456789ABCDEF": "01234567",
		"\x1b[31mowned by a foreign client": "?[31mown", "\xff\xfe\xfd\xfc": "??", "ééééé": "éé?",
	} {
		if got := driver.ShortOwner(owner); got != want {
			t.Errorf("ShortOwner(%q) = %q, want %q", owner, got, want)
		}
	}
}

// However a value is printed, logged or marshalled, nobody learns the owner by it, and no
// terminal is driven.
func TestNothingPrintsAnOwnerWhole(t *testing.T) {
	const owner, note = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", "\x1b[2Jnote"
	h := driver.Holder{Owner: driver.OwnerOf(owner), Note: note}
	w := driver.Waiter{Owner: driver.OwnerOf(owner), Note: note}
	state := driver.State{Resource: "a", Holders: []driver.Holder{h}, Waiters: []driver.Waiter{w}}
	for _, v := range []any{h, &h, w, &w, driver.Request{Resource: "a", Owner: owner, Note: note}, state, &state, state.Holders,
		&driver.Busy{Holder: h}, map[string]driver.Holder{"a": h}} {
		var all bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
			fmt.Fprintf(&all, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&all, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&all, nil)).Info("x", "v", v)
		if text, err := json.Marshal(v); err == nil { // a Request has a function
			all.Write(text)
		}
		if strings.Contains(all.String(), owner) {
			t.Errorf("%T shows the owner:\n%s", v, all.String())
		}
		if strings.ContainsFunc(all.String(), func(r rune) bool { return unicode.IsControl(r) && r != '\n' }) {
			t.Errorf("%T shows control characters:\n%q", v, all.String())
		}
	}
}
