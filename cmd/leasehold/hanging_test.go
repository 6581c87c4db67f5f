package main

import "testing"

// A path in a finding may have blanks beside each other, and a text may end with one.
func TestHangingKeepsBlanks(t *testing.T) {
	for text, want := range map[string]string{
		"/a  b is missing": "ok  /a  b\n    is\n    missing",
		" filled ":         "ok  filled",
		"":                 "ok  ",
	} {
		if got := hanging("ok", 4, text, 11); got != want {
			t.Errorf("%q: %q; want %q", text, got, want)
		}
	}
}
