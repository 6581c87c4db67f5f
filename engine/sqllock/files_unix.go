//go:build unix

package sqllock

import (
	"os"
	"slices"
	"syscall"
)

// linkCount returns how many names a file has.
func linkCount(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink)
	}
	return 1
}

// maxGap is how many unused descriptors in a row end the search for open ones. The system always
// assigns the lowest unused descriptor.
const maxGap = 1000

// heldDeleted reports whether this process still has file open, which was created at path, although
// file has no name any more. It opens no file, because closing it would drop SQLite's locks on it.
func heldDeleted(path string, file os.FileInfo) bool {
	if all, ok := openAs(path); ok {
		return slices.ContainsFunc(all, func(one os.FileInfo) bool { return linkCount(one) == 0 && os.SameFile(one, file) })
	}
	want, ok := file.Sys().(*syscall.Stat_t)
	for fd, unused := 0, 0; ok && unused < maxGap; fd++ {
		var st syscall.Stat_t
		if syscall.Fstat(fd, &st) != nil {
			unused++
			continue
		}
		unused = 0
		if st.Dev == want.Dev && st.Ino == want.Ino && st.Nlink == 0 {
			return true
		}
	}
	return false
}
