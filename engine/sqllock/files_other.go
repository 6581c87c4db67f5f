//go:build !unix

package sqllock

import "os"

// linkCount is not known here: users must give the file a single name.
func linkCount(os.FileInfo) uint64 { return 1 }

// heldDeleted returns false: Windows does not delete open files.
func heldDeleted(string, os.FileInfo) bool { return false }
