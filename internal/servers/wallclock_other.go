//go:build !(linux && amd64)

package servers

import (
	"errors"
	"os/exec"
	"time"
)

// A WallClock cannot be moved on this system: its code is for Linux on amd64.
type WallClock struct{}

// StartWithClock returns an error that says so.
func StartWithClock(*exec.Cmd) (*WallClock, <-chan error, error) {
	return nil, nil, errors.ErrUnsupported
}

// Set is never called.
func (*WallClock) Set(time.Duration) error { return errors.ErrUnsupported }

// Close is never called.
func (*WallClock) Close() error { return nil }
