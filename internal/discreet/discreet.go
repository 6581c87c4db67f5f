// Package discreet prints what has secrets inside, such as owners, by a few words: with every verb of
// package fmt. It does so for a value that fmt can ask. In an unexported field fmt asks nobody, and
// follows one pointer (with %s), but no second one: what has secrets inside is behind two there.
package discreet

import (
	"fmt"
	"io"
)

// Format implements fmt.Formatter for what is shown as text.
func Format(f fmt.State, text string) { io.WriteString(f, text) }
