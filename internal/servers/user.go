package servers

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unicode"
)

// runAs runs a program to its end, and fails t if it fails.
func runAs(t testing.TB, name, binary string, args ...string) {
	t.Helper()
	binary, args = asUser(name, binary, args...)
	if out, err := exec.Command(binary, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", binary, err, tail(string(out)))
	}
}

// asUser makes root run a program as the user called name; others run it as themselves. It sets the
// signal for a parent's death again, because changing the user clears it.
func asUser(name, binary string, args ...string) (string, []string) {
	if os.Geteuid() != 0 {
		return binary, args
	}
	return "setpriv", append([]string{"--reuid=" + name, "--regid=" + name, "--init-groups", "--pdeathsig=KILL", binary}, args...)
}

// copyOf fills dir/data, for the user called name, with a copy of what fill once put into an empty
// folder on this machine. Some servers take seconds to make their first files.
func copyOf(t testing.TB, name, dir, key string, fill func(folder string)) {
	t.Helper()
	templates := filepath.Join(os.TempDir(), "leasehold-templates-"+strconv.Itoa(os.Geteuid()))
	template := filepath.Join(templates, key)
	if _, err := os.Stat(template); err != nil {
		if err := os.MkdirAll(templates, 0o755); err != nil {
			t.Fatalf("make a folder: %v", err)
		}
		fresh := filepath.Join(folder(t, templates, name), "data") // on the same disk
		fill(fresh)
		if err := os.Rename(fresh, template); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			t.Fatalf("keep a template: %v", err)
		}
	}
	if out, err := exec.Command("cp", "-a", template, filepath.Join(dir, "data")).CombinedOutput(); err != nil {
		t.Fatalf("copy a template: %v: %s", err, out)
	}
}

// version returns a program's version, as a file name.
func version(t testing.TB, binary string) string {
	t.Helper()
	out, err := exec.Command(binary, "--version").Output()
	if err != nil {
		t.Fatalf("%s --version: %v", binary, err)
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || r == '.' {
			return r
		}
		return '_'
	}, strings.TrimSpace(string(out)))
}

// small mounts an empty disk of a size such as "2m" for the user called name, until t ends.
func small(t testing.TB, name, size string) (dir string) {
	t.Helper()
	dir = folder(t, diskOf(t), name)
	owner, err := user.Lookup(name)
	if err != nil {
		t.Fatalf("find a user: %v", err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "mode=700,size="+size+",uid="+owner.Uid+",gid="+owner.Gid, "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("needs the right to mount a small disk: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() }) // the server may still use it
	return dir
}
