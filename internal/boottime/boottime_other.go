//go:build !linux

package boottime

import "time"

// Available reports whether this system reports how long it slept.
func Available() bool { return false }

func asleep() time.Duration { return 0 }

func inBubble() bool { return false }

func awaitResumes(func()) (end func()) { return nil }
