//go:build !linux

package stores

// writable returns nil: on this system, SQLite reports that a file cannot be written.
func writable(string) error { return nil }
