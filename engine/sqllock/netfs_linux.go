package sqllock

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// File systems that several machines can use at once, by the f_type of statfs(2). Source:
// linux/magic.h and the statfs(2) manual.
var networkMagic = map[uint32]string{
	0x00006969: "nfs",
	0x0000517b: "smb",
	0xff534d42: "cifs",
	0xfe534d42: "smb2",
	0x01021997: "9p",
	0x5346414f: "afs",
	0x6b414653: "afs",
	0x73757245: "coda",
	0x0000564c: "ncp",
	0x00c36400: "ceph",
	0x0bd00bd0: "lustre",
	0x47504653: "gpfs",
	0x01161970: "gfs2",
	0x7461636f: "ocfs2",
	0x20030528: "pvfs2",
	0x19830326: "beegfs",
	0xaad7aaea: "panfs",
	0x013111a8: "ibrix",
}

const fuseMagic = 0x65735546

// networkFuse are the FUSE file systems that reach another machine, as mountinfo names them. Other
// FUSE file systems may be local, such as an encrypted home.
var networkFuse = map[string]bool{
	"fuse.sshfs": true, "fuse.glusterfs": true, "fuse.ceph": true, "fuse.ceph-fuse": true, "fuse.s3fs": true,
	"fuse.rclone": true, "fuse.gcsfuse": true, "fuse.goofys": true, "fuse.juicefs": true, "fuse.seaweedfs": true,
	"fuse.mfs": true, "fuse.davfs": true, "fuse.curlftpfs": true, "fuse.blobfuse": true, "fuse.blobfuse2": true,
	"fuse.mount-s3": true, "fuse.smbnetfs": true, "fuse.beegfs": true, "fuse.lizardfs": true,
}

// networkFS returns the network file system that holds path, or the folder in which path would be
// created. "": none that is known.
func networkFS(path string) (string, error) {
	if _, err := os.Stat(path); os.IsNotExist(err) {
		path = filepath.Dir(path)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(path, &fs); err != nil {
		return "", &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	magic := uint32(fs.Type)
	if magic == fuseMagic {
		return networkFuseAt(path), nil
	}
	return networkMagic[magic], nil
}

// networkFuseAt returns the FUSE file system of path if it is a network file system. If mountinfo
// cannot be read, path counts as local.
func networkFuseAt(path string) string {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return ""
	}
	dev := uint64(st.Dev)
	number := fmt.Sprintf("%d:%d", dev>>8&0xfff|dev>>32&^0xfff, dev&0xff|dev>>12&^0xff)
	for m := range eachMount {
		if m.device == number && networkFuse[m.kind] {
			return m.kind
		}
	}
	return ""
}

// isMount reports whether something is mounted at path. If mountinfo cannot be read, it reports
// false.
func isMount(path string) bool {
	for m := range eachMount {
		if m.point == path {
			return true
		}
	}
	return false
}

// A mount is a line of mountinfo; see proc_pid_mountinfo(5).
type mount struct{ device, point, kind string }

// eachMount yields each mount that this process sees.
func eachMount(yield func(mount) bool) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if m, ok := parseMount(lines.Text()); ok && !yield(m) {
			return
		}
	}
}

// mountEscapes replaces mountinfo's escapes for characters that would end a field or a line.
var mountEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func parseMount(line string) (mount, bool) {
	fields, rest, ok := strings.Cut(line, " - ")
	f := strings.Fields(fields)
	if !ok || len(f) < 5 {
		return mount{}, false
	}
	kind, _, _ := strings.Cut(rest, " ")
	return mount{device: f[2], point: mountEscapes.Replace(f[4]), kind: kind}, true
}
