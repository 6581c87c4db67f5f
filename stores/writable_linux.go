package stores

import "syscall"

// writable returns why this process may not write the file at path, or nil. It does not open the
// file: closing it again would drop the locks that SQLite has on it in this process.
func writable(path string) error {
	const toWrite, asThisProcess = 0x2, 0x200 // W_OK, AT_EACCESS
	const fromHere = -0x64                    // AT_FDCWD
	return syscall.Faccessat(fromHere, path, toWrite, asThisProcess)
}
