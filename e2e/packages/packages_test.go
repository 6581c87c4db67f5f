//go:build linux

// Package packages has what scripts/dist makes packages with, and the tests of them.
package packages

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/servers"
)

var folder = flag.String("packages", "", "test the packages in this `folder`, which scripts/dist has written")

// largest is what a program may have, in bytes.
const largest = 40 << 20

// file is the one of the packages for this machine that has the suffix.
func file(t *testing.T, suffix string) string {
	t.Helper()
	if *folder == "" {
		t.Skip("no packages: make test-dist makes them")
	}
	found, err := filepath.Glob(filepath.Join(*folder, "leasehold_*"+suffix))
	if err != nil || len(found) != 1 {
		t.Fatalf("*%s: %q, %v", suffix, found, err)
	}
	return found[0]
}

// here is this machine as the names of packages have it.
const here = "_linux_" + runtime.GOARCH

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func asRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("this needs the rights of root")
	}
}

// dpkg calls it on a system of its own, in dir.
func dpkg(t *testing.T, dir string, args ...string) string {
	t.Helper()
	return run(t, "dpkg", append([]string{"--root=" + dir, "--force-not-root", "--force-script-chrootless"}, args...)...)
}

func TestDebIsInstalledAndRemoved(t *testing.T) {
	deb := file(t, here+".deb")
	asRoot(t)
	dir := t.TempDir()
	for _, d := range []string{"var/lib/dpkg/updates", "var/lib/dpkg/info", "var/log"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "var/lib/dpkg/status"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	dpkg(t, dir, "--install", deb)
	if s := dpkg(t, dir, "--status", "leasehold"); !strings.Contains(s, "Status: install ok installed") {
		t.Errorf("after the installation: %s", s)
	}
	if s := run(t, "dpkg-deb", "--field", deb, "Recommends"); strings.TrimSpace(s) != "bash-completion" {
		t.Errorf("it recommends %q", s)
	}
	list := strings.Fields(dpkg(t, dir, "--listfiles", "leasehold"))
	wantFiles(t, list, "/usr/share/zsh/vendor-completions/_leasehold")
	if bad := strings.TrimSpace(dpkg(t, dir, "--verify", "leasehold")); bad != "" {
		t.Errorf("not as in the package: %s", bad)
	}
	told := run(t, filepath.Join(dir, "usr/bin/leasehold"), "version")
	if version := strings.Split(filepath.Base(deb), "_")[1]; !strings.HasPrefix(told, "leasehold v"+version+"\n") {
		t.Errorf("the package of %s has %q", version, told)
	}
	for _, line := range strings.Split(string(read(t, filepath.Join(dir, "etc/leasehold/serve.env.example"))), "\n") {
		if options, ok := strings.CutPrefix(line, "OPTIONS="); ok {
			run(t, filepath.Join(dir, "usr/bin/leasehold"), slices.Concat([]string{"serve"}, strings.Fields(options), []string{"--help"})...)
		}
	}
	page := run(t, "gzip", "-dc", filepath.Join(dir, "usr/share/man/man1/leasehold-run.1.gz"))
	if !strings.Contains(page, `\-\-once\-per`) {
		t.Error("the page of run does not tell of --once-per")
	}
	dpkg(t, dir, "--purge", "leasehold")
	for _, name := range []string{"usr/bin/leasehold", "etc/leasehold", "usr/share/man/man1/leasehold.1.gz", "usr/lib/systemd"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is left behind", name)
		}
	}
}

// wantFiles checks that list has what every package has, and others.
func wantFiles(t *testing.T, list []string, others ...string) {
	t.Helper()
	for _, name := range append(others, "/usr/bin/leasehold", "/etc/leasehold", "/usr/share/man/man1/leasehold-run.1.gz",
		"/usr/share/bash-completion/completions/leasehold", "/usr/share/fish/vendor_completions.d/leasehold.fish",
		"/usr/lib/systemd/system/leasehold-lead@.service", "/usr/lib/systemd/system/leasehold-serve.service",
		"/etc/leasehold/config.example", "/etc/leasehold/serve.env.example", "/etc/leasehold/lead/NAME.env.example", "/usr/share/doc/leasehold/copyright") {
		if !slices.Contains(list, name) {
			t.Errorf("%s is not in the package", name)
		}
	}
}

// systemd takes the units as they are, with a program that is here in place of ours.
func TestUnits(t *testing.T) {
	analyze := servers.Need(t, "systemd", "systemd-analyze")
	for from, to := range map[string]string{"leasehold-serve.service": "leasehold-serve.service", "leasehold-lead@.service": "leasehold-lead@job.service"} {
		unit := filepath.Join(t.TempDir(), to)
		text := strings.ReplaceAll(string(read(t, from)), "/usr/bin/leasehold", "/bin/true")
		if err := os.WriteFile(unit, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out := run(t, analyze, "verify", "--man=no", unit); out != "" {
			t.Errorf("%s: %s", from, out)
		}
	}
}

// A unit is restarted whatever ended it: exit code 64 may also mean that a secret was incomplete when
// it started.
func TestUnitsAreAlwaysRestarted(t *testing.T) {
	for _, name := range []string{"leasehold-serve.service", "leasehold-lead@.service"} {
		unit := string(read(t, name))
		if !strings.Contains(unit, "\nRestart=always\n") || !strings.Contains(unit, "\nStartLimitIntervalSec=0\n") || strings.Contains(unit, "RestartPreventExitStatus") {
			t.Errorf("%s is not restarted after each exit", name)
		}
	}
}

// The lock is the instance's name as it is typed: %I would replace its dashes by slashes.
func TestLeaderLocksItsName(t *testing.T) {
	unit := string(read(t, "leasehold-lead@.service"))
	if !strings.Contains(unit, " lead %i -- ") || strings.Contains(unit, "%I") {
		t.Error("leasehold-lead@nightly-report may lock another name")
	}
}

// The unit can write the audit log and read the secrets that its example and the guide name.
func TestFilesOfTheService(t *testing.T) {
	unit := string(read(t, "leasehold-serve.service"))
	for _, file := range []string{"examples/serve.env.example", "../../docs/serve.md"} {
		text := string(read(t, file))
		secrets := regexp.MustCompile(`/run/credentials/leasehold-serve\.service/([a-z.]+[a-z])`).FindAllStringSubmatch(text, -1)
		if len(secrets) == 0 {
			t.Errorf("%s names no secret", file)
		}
		for _, s := range secrets {
			if !strings.Contains(unit, "\nLoadCredential="+s[1]+":leasehold."+s[1]+"\n") {
				t.Errorf("%s names %s, which the unit does not load", file, s[1])
			}
			if !strings.Contains(text, "leasehold."+s[1]) {
				t.Errorf("%s does not say where %s comes from", file, s[1])
			}
		}
		if !strings.Contains(text, "--audit /var/log/leasehold/") || !strings.Contains(unit, "\nLogsDirectory=leasehold\n") {
			t.Errorf("%s: the unit cannot write the audit log", file)
		}
	}
}

func TestRPM(t *testing.T) {
	rpm := file(t, here+".rpm")
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Skip("no rpm: scripts/install-tools rpm installs it")
	}
	run(t, "rpm", "--checksig", "--nosignature", rpm)
	wantFiles(t, strings.Fields(run(t, "rpm", "-qpl", rpm)), "/usr/share/zsh/site-functions/_leasehold")
	asRoot(t)
	dir := t.TempDir()
	arch := "--ignorearch" // a Debian machine's rpm may not know its own
	run(t, "rpm", "--root", dir, "--initdb")
	run(t, "rpm", "--root", dir, "--install", "--nodeps", arch, rpm)
	run(t, "rpm", "--root", dir, "--verify", "--nodeps", "leasehold")
	run(t, "rpm", "--root", dir, "--erase", "leasehold")
	if _, err := os.Lstat(filepath.Join(dir, "usr/bin/leasehold")); err == nil {
		t.Error("the program is left behind")
	}
}

func TestProgramIsStaticAndNotTooLarge(t *testing.T) {
	for _, archive := range archives(t) {
		program := untar(t, gunzip(t, read(t, archive)))["leasehold"]
		if len(program) == 0 || len(program) > largest {
			t.Errorf("%s: the program has %d bytes, want at most %d", archive, len(program), largest)
		}
		if !strings.Contains(archive, "linux") {
			continue
		}
		f, err := elf.NewFile(bytes.NewReader(program))
		if err != nil {
			t.Fatal(err)
		}
		if f.Section(".interp") != nil {
			t.Errorf("%s: the program needs a dynamic loader", archive)
		}
	}
}

func archives(t *testing.T) []string {
	t.Helper()
	file(t, here+".tar.gz")
	found, _ := filepath.Glob(filepath.Join(*folder, "leasehold_*.tar.gz"))
	return found
}

func TestBill(t *testing.T) {
	var bill struct {
		BOMFormat, SpecVersion string
		Metadata               struct {
			Component struct{ Name, Version string }
		}
		Components []struct{ Name, Version, Purl string }
	}
	if err := json.Unmarshal(read(t, file(t, here+".cdx.json")), &bill); err != nil {
		t.Fatal(err)
	}
	if bill.BOMFormat != "CycloneDX" || !strings.HasPrefix(bill.Metadata.Component.Version, "v") {
		t.Errorf("got %+v", bill.Metadata)
	}
	program := filepath.Join(t.TempDir(), "leasehold")
	if err := os.WriteFile(program, untar(t, gunzip(t, read(t, file(t, here+".tar.gz"))))["leasehold"], 0o700); err != nil {
		t.Fatal(err)
	}
	deps := 0
	for line := range strings.Lines(run(t, "go", "version", "-m", program)) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "dep" {
			deps++
			if !slices.ContainsFunc(bill.Components, func(c struct{ Name, Version, Purl string }) bool {
				return c.Name == f[1] && (c.Version == f[2] || f[2] == "(devel)") && c.Purl == "pkg:golang/"+c.Name+"@"+c.Version
			}) {
				t.Errorf("%s %s is not in the bill", f[1], f[2])
			}
		}
	}
	if deps < 10 || len(bill.Components) != deps+1 { // and the standard library
		t.Errorf("%d modules in the program, %d components in the bill", deps, len(bill.Components))
	}
}

func TestChecksums(t *testing.T) {
	file(t, here+".deb")
	cmd := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	cmd.Dir = *folder
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func gunzip(t *testing.T, packed []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// untar returns the files of an archive by their names.
func untar(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}
