//go:build !unix

package sqllock

import "os"

// links is not told here: it is up to the user to give the file one name.
func linkCount(os.FileInfo) uint64 { return 1 }

// heldDeleted: Windows does not delete files that are open.
func heldDeleted(os.FileInfo) bool { return false }
