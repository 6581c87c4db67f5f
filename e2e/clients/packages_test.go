package clients

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// needs skips t unless the command runs.
func needs(t *testing.T, what string, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Skipf("no %s (%v): scripts/install-tools installs it\n%s", what, err, out)
	}
}

// must runs what is to succeed in dir.
func must(t *testing.T, env []string, dir, name string, args ...string) (out string) {
	t.Helper()
	out, code := run(t, env, dir, name, args...)
	if code != 0 {
		t.Fatalf("%s %s: exit code %d, %s", name, strings.Join(args, " "), code, out)
	}
	return out
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(folder(t, path))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// only is the one file that fits.
func only(t *testing.T, dir, pattern string) (path string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s in %s: %q, %v", pattern, dir, found, err)
	}
	return found[0]
}

func TestPythonIsTyped(t *testing.T) {
	t.Parallel()
	needs(t, "mypy", "/usr/bin/python3", "-c", "import mypy")
	must(t, nil, folder(t, "clients/python"), "/usr/bin/python3", "-m", "mypy", "--strict", "--cache-dir="+os.DevNull)
}

// What pip installs in an empty folder, from the wheel and from the sdist, runs the code of its README, and is typed.
func TestPythonPackageInstalls(t *testing.T) {
	t.Parallel()
	needs(t, "pip, setuptools and wheel", "/usr/bin/python3", "-c", "import setuptools, wheel, pip")
	server := serve(t, "memory:")
	made := t.TempDir()
	must(t, []string{"PYTHON=/usr/bin/python3"}, folder(t, "."), "scripts/client-packages", made, "python")
	for _, pattern := range []string{"*.whl", "*.tar.gz"} {
		dir := t.TempDir()
		must(t, nil, dir, "/usr/bin/python3", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation",
			"--root-user-action=ignore", "--disable-pip-version-check", "--target", "site", only(t, made, pattern))
		env := []string{"PYTHONPATH=" + filepath.Join(dir, "site")}
		where := must(t, env, dir, "/usr/bin/python3", "-c", "import leasehold; print(leasehold.__file__, leasehold.__version__)")
		if !strings.HasPrefix(where, dir) || !strings.Contains(where, " "+version(t)) {
			t.Errorf("%s: it is %q, want version %s", pattern, where, version(t))
		}
		only(t, dir, "site/leasehold/py.typed")
		wants := []string{"holding nightly-report with token", "holding nightly-report with token", "done", "8 of 24 GB"}
		all := blocks(t, "clients/python/README.md", "python")
		if len(all) != len(wants) {
			t.Fatalf("%d blocks in the README, want %d", len(all), len(wants))
		}
		for i, text := range all {
			program := write(t, dir, "a.py", strings.ReplaceAll(text, "http://127.0.0.1:7400", server.url))
			if out := must(t, env, dir, "/usr/bin/python3", program); !strings.Contains(out, wants[i]) {
				t.Errorf("%s: block %d of the README prints %q", pattern, i, out)
			}
		}
	}
}

// What npm installs in an empty folder runs the code of its README, and has types that fit every name.
func TestNodePackageInstalls(t *testing.T) {
	t.Parallel()
	needs(t, "npm", "npm", "--version")
	server := serve(t, "memory:")
	dir := t.TempDir()
	must(t, nil, folder(t, "."), "scripts/client-packages", dir, "node")
	must(t, nil, dir, "npm", "init", "--yes")
	must(t, nil, dir, "npm", "install", "--offline", "--no-audit", "--no-fund", only(t, dir, "*.tgz"))
	var listed struct {
		Dependencies map[string]struct{ Version string }
	}
	if err := json.Unmarshal([]byte(must(t, nil, dir, "npm", "ls", "--json")), &listed); err != nil {
		t.Fatal(err)
	}
	if len(listed.Dependencies) != 1 || listed.Dependencies["leasehold"].Version != version(t) {
		t.Errorf("installed: %v, want leasehold %s alone", listed.Dependencies, version(t))
	}
	for i, want := range []string{"holding nightly-report with token", "", "done", "8 of 24 GB"} {
		text := blocks(t, "clients/node/README.md", "js")[i]
		program := write(t, dir, "a.mjs", strings.ReplaceAll(text, "http://127.0.0.1:7400", server.url))
		if out := must(t, nil, dir, "node", program); !strings.Contains(out, want) || strings.Contains(out, "somebody") {
			t.Errorf("block %d of the README prints %q", i, out)
		}
	}
	t.Run("types", func(t *testing.T) {
		typescript := servers.TypeScript(t)
		program := write(t, dir, "typed.mts", string(read(t, "clients/node/test/typed.mts")))
		must(t, nil, dir, filepath.Join(typescript, ".bin", "tsc"), "--noEmit", "--strict", "--target", "es2022", "--lib", "es2022", "--module", "nodenext",
			"--typeRoots", filepath.Join(typescript, "@types"), "--types", "node", program)
	})
}

// version is the modules' next, which scripts/set-version gives the packages too.
func version(t *testing.T) string {
	t.Helper()
	found := regexp.MustCompile(`leasehold v(\S+) => \./\n`).FindSubmatch(read(t, "go.work"))
	if found == nil {
		t.Fatal("go.work does not tell the version")
	}
	return string(found[1])
}

func TestPackagesHaveTheModulesVersionAndLicence(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"clients/python/src/leasehold/_version.py": `__version__ = "` + version(t) + `"`,
		"clients/node/package.json":                `"version": "` + version(t) + `"`,
	} {
		if !bytes.Contains(read(t, file), []byte(want)) {
			t.Errorf("%s is not of %s", file, want)
		}
	}
	for _, copied := range []string{"clients/python/LICENSE", "clients/node/LICENSE"} {
		if !bytes.Equal(read(t, copied), read(t, "LICENSE")) {
			t.Errorf("%s differs from LICENSE", copied)
		}
	}
}

// scripts/set-version, in a copy, changes the packages' versions.
func TestSetVersionReachesThePackages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, nil, folder(t, "."), "sh", "-c", `git ls-files -z scripts/set-version go.work cmd/leasehold/released.go clients ':(glob)**/go.mod' go.mod |
		tar --null -cf - -T - | tar -xf - -C "$1"`, "sh", dir)
	must(t, []string{"GOWORK="}, dir, "scripts/set-version", "v12.34.56")
	for file, want := range map[string]string{
		"clients/python/src/leasehold/_version.py": `__version__ = "12.34.56"`,
		"clients/node/package.json":                `"version": "12.34.56",`,
	} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s: %s, %v", file, text, err)
		}
	}
}
