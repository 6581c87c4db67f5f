package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An empty value is a variable that is not set, and no wish for a lock of one's own.
func TestEmptyValuesAreRefused(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, args := range everyCommand {
		o := c.want(64, append([]string{"--store", ""}, args...)...)
		contains(t, o.stderr, "--store is empty", "not set")
	}
	for _, line := range []string{
		`run x --store "" -- touch ran`, `run --note "" x -- touch ran`, `run "" -- touch ran`, `run --key "" -- touch ran`,
		`run --also "" x -- touch ran`, `run x -c ""`, `run x --note "" -- touch ran`, `lead --note "" x -- touch ran`, `acquire --note "" x`,
		`evict x --owner "" --reason x`, `evict x --owner x --reason ""`, `renew x ""`, `release x ""`, `demo seckill --shop ""`, `demo seckill --strategy ""`,
		`run -w "" x -- touch ran`, `run --ttl "" x -- touch ran`, `run -E "" x -- touch ran`,
	} {
		if o := c.exec("sh", "-c", "leasehold "+line); o.code != 64 {
			t.Errorf("%s: exit code %d, %q, want 64", line, o.code, o.stderr)
		}
	}
	c.missing("ran")
	c.store, c.env = "", []string{"LEASEHOLD_STORE="}
	for _, args := range everyCommand {
		if args[0] != "demo" {
			contains(t, c.want(64, args...).stderr, "LEASEHOLD_STORE is empty")
		}
	}
	c.want(0, "help")
	c.missing(".local")
}

func (c *cli) configure(text string) {
	c.t.Helper()
	folder := filepath.Join(c.dir, ".config/leasehold")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		c.t.Fatal(err)
	}
	write(c.t, filepath.Join(folder, "config"), []byte(text))
}

func TestConfiguration(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.store = ""
	c.configure("# where we lock\n\n  store = sqlite:" + c.dir + "/a b=c.db \n")
	contains(t, c.wantRun(0, "-v", "x", "--", "sh", "-c", `echo "$LEASEHOLD_STORE"`).stdout, "sqlite:"+c.dir+"/a b=c.db\n")
	c.missing(".local")
	// The environment goes before it, and the flag before that.
	c.env = []string{"LEASEHOLD_STORE=sqlite:" + c.dir + "/env.db"}
	contains(t, c.want(0, "run", "-v", "x", "--", "true").stderr, "/env.db")
	contains(t, c.want(0, "--store", "sqlite:flag.db", "run", "-v", "x", "--", "true").stderr, "/flag.db")
	c.env = []string{"XDG_CONFIG_HOME=" + c.dir + "/other"}
	contains(t, c.want(0, "run", "-v", "x", "--", "true").stderr, "/.local/state/")
	c.env = nil

	for text, says := range map[string]string{
		"store":                              "want key = value",
		"store redis://u:" + canary + "@h":   "want key = value",
		"\npassword = " + canary:             "line 2: unknown key; known: store, require-shared",
		canary + " = x":                      "unknown key",
		"store =":                            "store is empty",
		"store = sqlite:x.db":                "begin with a slash",
		"store = sqlite:/a\nstore=sqlite:/b": "twice",
		"store = nosuch:" + canary:           `"nosuch"`,
		"require-shared = perhaps":           "neither true nor false",
	} {
		c.configure(text)
		for _, args := range [][]string{{"run", "x", "--", "touch", "ran"}, {"doctor"}} {
			contains(t, c.want(64, args...).stderr, says, c.dir+"/.config/leasehold/config")
		}
	}
	c.missing("ran")
	if err := os.Remove(filepath.Join(c.dir, ".config/leasehold/config")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(c.dir, ".config/leasehold/config"), 0o700); err != nil {
		t.Fatal(err)
	}
	contains(t, c.want(64, "ls").stderr, "cannot be read")
}

// Who has made a link to a configuration means it, although what it leads to is not there now.
func TestConfigurationThatLinksToNothing(t *testing.T) {
	t.Parallel()
	for _, link := range []string{".config/leasehold/config", ".config/leasehold"} {
		c := newCLI(t)
		c.store = ""
		path := filepath.Join(c.dir, link)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/nosuch/config", path); err != nil {
			t.Fatal(err)
		}
		contains(t, c.want(64, "run", "x", "--", "touch", "ran").stderr, "cannot be read", path, "link")
		c.missing("ran")
	}
}

// A pipe that nobody writes into would hold up every command, deaf to signals.
func TestConfigurationThatIsAPipe(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.store = ""
	c.configure("")
	path := filepath.Join(c.dir, ".config/leasehold/config")
	os.Remove(path)
	c.exec("mkfifo", path).wantCode(t, 0)
	contains(t, c.want(64, "run", "x", "--", "touch", "ran").stderr, "cannot be read", "pipe")
	c.missing("ran")
}

// A home that means another folder in each folder would be a lock of its own in each.
func TestRelativeHomeIsNone(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.store, c.env = "", []string{"HOME=."}
	contains(t, c.want(69, "run", "x", "--", "touch", "ran").stderr, "$HOME", "--store")
	o := c.call("doctor")
	if contains(t, o.stdout, "error  store  ", "$HOME", "--store"); o.code != 69 {
		t.Errorf("doctor: exit code %d, want 69", o.code)
	}
	c.missing("ran")
}

func TestSystemConfiguration(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.store = ""
	if o := c.exec("unshare", "-rm", "mount", "-t", "tmpfs", "none", "/etc"); o.code != 0 {
		t.Skipf("no mount namespaces here: %s", o.stderr)
	}
	o := c.exec("unshare", "-rm", "sh", "-ec", `
mount -t tmpfs none /etc
mkdir /etc/leasehold .config .config/leasehold
echo "store = sqlite:$PWD/system.db" > /etc/leasehold/config
leasehold run -v x -- true
echo "store = sqlite:$PWD/user.db" > .config/leasehold/config
leasehold run -v x -- true
echo "require-shared = true" >> /etc/leasehold/config
leasehold run x -- touch ran || [ $? = 64 ]
leasehold --require-shared=false run -v x -- true
`)
	o.wantCode(t, 0)
	contains(t, o.stderr, "/system.db", "/user.db", "/etc/leasehold/config requires one that other machines share")
	c.missing("ran")
}

// Who must not run on a local file by mistake says so.
func TestRequireShared(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	contains(t, c.want(64, "--require-shared", "run", "x", "--", "touch", "ran").stderr, "LEASEHOLD_STORE is a file of this machine", "--require-shared")
	c.env = []string{"LEASEHOLD_REQUIRE_SHARED=true"}
	contains(t, c.want(64, "--store", "SQLite:x.db", "acquire", "x").stderr, "--store is a file")
	c.store = ""
	contains(t, c.want(64, "lead", "x", "--", "touch", "ran").stderr, "no store is named")
	c.want(69, "--store", "redis://127.0.0.1:1", "run", "x", "--", "touch", "ran")
	c.want(0, "--require-shared=false", "run", "x", "--", "true")
	c.env = []string{"LEASEHOLD_REQUIRE_SHARED="}
	contains(t, c.want(64, "run", "x", "--", "touch", "ran").stderr, "is empty")
	c.env = nil
	c.configure("require-shared = true\n")
	contains(t, c.want(64, "run", "x", "--", "touch", "ran").stderr, ".config/leasehold/config requires")
	c.missing("ran")
}

// A README's line for many machines names a store for many machines.
func TestDocumentsNameAStoreForManyMachines(t *testing.T) {
	t.Parallel()
	texts := documents(t)
	for _, cmd := range everyHelp(newRootCommand(&app{})) {
		texts["help "+cmd.Name()] = cmd.Example
	}
	for where, text := range texts {
		for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", "")) {
			if strings.Contains(line, " -- ") && (strings.Contains(line, "leasehold run --once-per") || strings.Contains(line, "leasehold lead ")) {
				t.Errorf("%s: for many machines, and no store: %s", where, line)
			}
		}
	}
}
