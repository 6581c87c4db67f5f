package sqllock

import (
	"path/filepath"
	"testing"
)

func TestNetworkFS(t *testing.T) {
	t.Parallel()
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "not there yet")} {
		if kind, err := networkFS(path); err != nil || kind != "" {
			t.Errorf("a local folder: %q, %v", kind, err)
		}
	}
	if _, err := networkFS("/not there/at all"); err == nil {
		t.Error("a folder that is not there passed")
	}
	// An SMB share has a magic number that is negative where f_type is signed.
	for magic, want := range map[int64]string{0x6969: "nfs", -0x1acb2be: "smb2", 0xef53: ""} {
		if got := networkMagic[uint32(magic)]; got != want {
			t.Errorf("%#x: %q, want %q", magic, got, want)
		}
	}
}

func TestParseMount(t *testing.T) {
	t.Parallel()
	const sshfs = `98 29 0:51 / /home/me/far\040away\134 rw,nosuid,nodev shared:55 - fuse.sshfs me@host: rw,user_id=0`
	for _, test := range []struct {
		line string
		want mount
	}{
		{sshfs, mount{"0:51", `/home/me/far away\`, "fuse.sshfs"}},
		{`99 29 0:52 / /mnt rw - ext4 /dev/sda1 rw`, mount{"0:52", "/mnt", "ext4"}},
		{"", mount{}}, {"no dash", mount{}}, {"too - short", mount{}},
	} {
		if got, ok := parseMount(test.line); got != test.want || ok != (test.want != mount{}) {
			t.Errorf("%q: %q, want %q", test.line, got, test.want)
		}
	}
	if !networkFuse["fuse.sshfs"] || networkFuse["fuse.gocryptfs"] {
		t.Error("sshfs is a network file system, gocryptfs is not")
	}
	if !isMount("/proc") || isMount("/proc/self") {
		t.Error("/proc is mounted, /proc/self is not")
	}
}
