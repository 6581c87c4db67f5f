//go:build linux

package packages

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A reference is what a descriptor of an image names.
type reference struct {
	Digest   string
	Size     int
	Platform struct{ Architecture string }
}

// unpack returns the configuration of an image for this machine, and the program in it.
func unpack(t *testing.T, layout map[string][]byte) (user string, entry []string, binary []byte) {
	t.Helper()
	blob := func(r reference, v any) []byte {
		text := layout["blobs/"+strings.ReplaceAll(r.Digest, ":", "/")]
		if len(text) != r.Size || digestOf(text) != r.Digest {
			t.Fatalf("%s: %d bytes, want %d, with that sum", r.Digest, len(text), r.Size)
		}
		if v != nil {
			if err := json.Unmarshal(text, v); err != nil {
				t.Fatal(err)
			}
		}
		return text
	}
	var top, platforms struct{ Manifests []reference }
	if err := json.Unmarshal(layout["index.json"], &top); err != nil {
		t.Fatal(err)
	}
	blob(top.Manifests[0], &platforms)
	for _, r := range platforms.Manifests {
		var m struct {
			Config reference
			Layers []reference
		}
		var c struct {
			Architecture string
			Config       struct {
				User       string
				Entrypoint []string
			}
			RootFS struct {
				DiffIDs []string `json:"diff_ids"`
			}
		}
		blob(r, &m)
		blob(m.Config, &c)
		layer := gunzip(t, blob(m.Layers[0], nil))
		if len(m.Layers) != 1 || c.Architecture != r.Platform.Architecture || digestOf(layer) != c.RootFS.DiffIDs[0] {
			t.Errorf("%+v does not fit %+v", c, m)
		}
		if c.Architecture == runtime.GOARCH {
			user, entry, binary = c.Config.User, c.Config.Entrypoint, untar(t, layer)["usr/bin/leasehold"]
		}
	}
	return user, entry, binary
}

func TestImageOfAnyProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	binary := filepath.Join(dir, "binary")
	if err := os.WriteFile(binary, []byte("a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	build := func(name string) []byte {
		run(t, "go", "run", "./image", "-o", filepath.Join(dir, name), "-version", "v1", "-created", "1700000000", "linux/"+runtime.GOARCH+"="+binary)
		return read(t, filepath.Join(dir, name))
	}
	first := build("1.tar")
	if string(first) != string(build("2.tar")) {
		t.Error("made twice, it is not the same")
	}
	user, entry, text := unpack(t, untar(t, first))
	if user != "65534:65534" || len(entry) != 1 || entry[0] != "/usr/bin/leasehold" || string(text) != "a program" {
		t.Errorf("got user %q, entry point %q, program %q", user, entry, text)
	}
}

// In the image there is neither a shell nor a libc: the program runs in a folder that has nothing but
// itself and, as the command to run, itself once more. A run needs /proc; without it nothing is run.
func TestImageRunsWithoutAnythingElse(t *testing.T) {
	layout := untar(t, read(t, file(t, "_oci.tar")))
	asRoot(t)
	_, entry, binary := unpack(t, layout)
	dir := t.TempDir()
	inRoot(t, dir, entry[0], binary)
	leasehold := []string{entry[0], "--store", "sqlite:/locks.db"}
	version := append(leasehold, "run", "x", "--", entry[0], "version")
	if out, err := chroot(dir, true, version...); err != nil || !strings.HasPrefix(out, "leasehold v") {
		t.Errorf("a run: %v, %q", err, out)
	}
	if out, err := chroot(dir, false, append(leasehold, "acquire", "y")...); err != nil || !strings.Contains(out, "LEASEHOLD_TOKEN") {
		t.Errorf("acquire without /proc: %v, %q", err, out)
	}
	for _, verb := range []string{"run", "lead"} {
		refused := append(leasehold, verb, "x", "--", entry[0], "version")
		if out, err := chroot(dir, false, refused...); err == nil || !strings.Contains(out, "/proc is needed") {
			t.Errorf("%s without /proc: %v, %q", verb, err, out)
		}
	}
}

func inRoot(t *testing.T, dir, path string, text []byte) {
	t.Helper()
	for _, d := range []string{"proc", filepath.Dir(path)} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, path), text, 0o755); err != nil {
		t.Fatal(err)
	}
}

// chroot runs a command with dir as its root, as PID 1 of a namespace of its own.
func chroot(dir string, proc bool, args ...string) (string, error) {
	flags := []string{"--fork", "--pid", "--root=" + dir}
	if proc {
		flags = append(flags, "--mount-proc")
	}
	out, err := exec.Command("unshare", append(append(flags, "--"), args...)...).CombinedOutput()
	return string(out), err
}

func digestOf(text []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(text)) }
