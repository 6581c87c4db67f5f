//go:build !linux

package sqllock

// networkFS is implemented on Linux only. Elsewhere users must keep the file on a local disk.
func networkFS(string) (string, error) { return "", nil }

// isMount is implemented on Linux only.
func isMount(string) bool { return false }
