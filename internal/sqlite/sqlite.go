// Package sqlite reads the errors of SQLite, whichever client they come from.
package sqlite

import (
	"errors"
	"strings"
)

// Primary result codes of SQLite.
const (
	Busy     = 5
	Locked   = 6
	ReadOnly = 8
	Corrupt  = 11
	Full     = 13
	NotADB   = 26
)

// texts are SQLite's messages, for clients whose errors have no Code method.
var texts = map[string]int{
	"database is locked":       Busy,
	"SQLITE_BUSY":              Busy,
	"database table is locked": Locked,
	"readonly database":        ReadOnly,
	"malformed":                Corrupt,
	"database or disk is full": Full,
	"not a database":           NotADB,
}

// Code returns the primary result code of err, or 0.
func Code(err error) int {
	if err == nil {
		return 0
	}
	var coded interface {
		error
		Code() int
	}
	if errors.As(err, &coded) {
		return coded.Code() & 0xff
	}
	for text, code := range texts {
		if strings.Contains(err.Error(), text) {
			return code
		}
	}
	return 0
}

// IsBusy reports whether another connection prevented err's statement, which has done nothing. That
// includes the extended codes. BUSY_SNAPSHOT is a read transaction that tried to write too late.
// BUSY_RECOVERY is another process that replays the log after a crash.
func IsBusy(err error) bool {
	code := Code(err)
	return code == Busy || code == Locked
}
