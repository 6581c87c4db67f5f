package sqlite

import (
	"errors"
	"fmt"
	"testing"
)

type coded int

func (c coded) Error() string { return "of a client" }
func (c coded) Code() int     { return int(c) }

func TestCodes(t *testing.T) {
	const busySnapshot, busyRecovery = 5 | 2<<8, 5 | 1<<8
	for err, want := range map[error]struct {
		code int
		busy bool
	}{
		coded(busySnapshot):                            {Busy, true},
		fmt.Errorf("wrapped: %w", coded(busyRecovery)): {Busy, true},
		coded(Full):                                        {Full, false},
		errors.New("database is locked (5)"):               {Busy, true},
		errors.New("database table is locked: x"):          {Locked, true},
		errors.New("database disk image is malformed"):     {Corrupt, false},
		errors.New("attempt to write a readonly database"): {ReadOnly, false},
		errors.New("file is not a database"):               {NotADB, false},
		errors.New("no such table: leasehold_locks"):       {0, false},
		errors.New(`UNIQUE constraint failed: t.locked`):   {0, false},
	} {
		if code := Code(err); code != want.code || IsBusy(err) != want.busy {
			t.Errorf("%v: code %d, busy %v", err, code, IsBusy(err))
		}
	}
	if Code(nil) != 0 || IsBusy(nil) {
		t.Error("nil is an error")
	}
}
