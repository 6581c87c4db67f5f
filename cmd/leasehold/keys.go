package main

import "unicode/utf8"

// Names of keys without a character. Any other key is named by its character.
const (
	keyUp        = "up"
	keyDown      = "down"
	keyPageUp    = "page up"
	keyPageDown  = "page down"
	keyHome      = "home"
	keyEnd       = "end"
	keyEnter     = "enter"
	keyEscape    = "esc"
	keyBackspace = "backspace"
	keyClear     = "clear" // Ctrl-U
	keyInterrupt = "interrupt"
)

// controls maps bytes that terminals send to keys.
var controls = map[byte]string{
	'\r': keyEnter, '\n': keyEnter, 0x7f: keyBackspace, 0x08: keyBackspace, 0x15: keyClear, 0x03: keyInterrupt, 0x1c: keyInterrupt,
}

// sequences maps escape sequences, without their first two bytes, to keys.
var sequences = map[string]string{
	"A": keyUp, "B": keyDown, "H": keyHome, "F": keyEnd, "5~": keyPageUp, "6~": keyPageDown,
	"1~": keyHome, "7~": keyHome, "4~": keyEnd, "8~": keyEnd,
}

// decodeKeys returns the keys in b, and the beginning of an incomplete one. If all is true, no more
// bytes will come.
func decodeKeys(b []byte, all bool) (keys []string, rest []byte) {
	for len(b) > 0 {
		key, n := decodeKey(b)
		switch {
		case n == 0 && !all:
			return keys, b
		case n == 0 && b[0] == 0x1b:
			key, n = keyEscape, len(b)
		case n == 0:
			n = len(b)
		}
		if b = b[n:]; key != "" {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// decodeKey returns the first key of b and its length. The length is 0 if the key is incomplete.
// The key is "" if the bytes are no known key.
func decodeKey(b []byte) (key string, n int) {
	switch {
	case b[0] == 0x1b:
		return decodeEscape(b)
	case b[0] < ' ', b[0] == 0x7f:
		return controls[b[0]], 1
	case !utf8.FullRune(b):
		return "", 0
	}
	r, n := utf8.DecodeRune(b)
	if r == utf8.RuneError {
		return "", n
	}
	return string(r), n
}

// decodeEscape is decodeKey for bytes that begin with an escape.
func decodeEscape(b []byte) (key string, n int) {
	switch {
	case len(b) == 1:
		return "", 0
	case b[1] != '[' && b[1] != 'O':
		return keyEscape, 1
	}
	for i, c := range b[2:] {
		if c >= '@' && c <= '~' {
			return sequences[string(b[2:i+3])], i + 3
		}
	}
	return "", 0
}
