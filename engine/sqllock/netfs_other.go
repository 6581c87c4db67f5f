//go:build !linux

package sqllock

// networkFS is known on Linux only. Elsewhere it is up to the user to keep the file on
// a local disk.
func networkFS(string) (string, error) { return "", nil }

// isMount is known on Linux only, too.
func isMount(string) bool { return false }
