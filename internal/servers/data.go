package servers

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
	"testing"
)

// inMemory is Linux's file system in memory. roomInMemory is the space that must be free there,
// because a database takes 200 MB.
const (
	inMemory     = "/dev/shm"
	roomInMemory = 4 << 30
)

// diskOf returns the folder for the data of t's servers, for os.MkdirTemp: in memory if there is
// room. Several databases that flush to a disk at once delay each other for seconds. No test is
// about that, because processes are killed, never the machine. Benchmarks measure the disk.
func diskOf(t testing.TB) string {
	var fs syscall.Statfs_t
	if measures(t) || syscall.Statfs(inMemory, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < roomInMemory {
		return ""
	}
	return inMemory
}

// measures reports whether t is a benchmark.
func measures(t testing.TB) bool {
	_, yes := t.(*testing.B)
	return yes
}

// DataDir returns an empty folder for the data of a server, or of SQLite. It is removed when t
// ends.
func DataDir(t testing.TB) string {
	t.Helper()
	return folder(t, diskOf(t), "")
}

// folder returns an empty folder on a disk, removed when t ends. It belongs to the named user; ""
// is ours. Only root can create it for another. t.TempDir is in a folder that others may not enter.
func folder(t testing.TB, disk, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp(disk, "leasehold-"+name)
	if err != nil {
		t.Fatalf("make a folder: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if name == "" || os.Geteuid() != 0 {
		return dir
	}
	owner, err := user.Lookup(name)
	if err != nil {
		t.Fatalf("find a user: %v", err)
	}
	uid, _ := strconv.Atoi(owner.Uid) // numbers on Unix
	gid, _ := strconv.Atoi(owner.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatalf("give a folder away: %v", err)
	}
	return dir
}
