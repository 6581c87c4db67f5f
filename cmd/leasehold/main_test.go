package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// binary is the real command, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "leasehold-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "leasehold")
	if err := servers.Program(binary, "."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, name := range []string{"LEASEHOLD_STORE", "LEASEHOLD_NAME", "LEASEHOLD_OWNER", "LEASEHOLD_TOKEN"} {
		os.Unsetenv(name) // the tests set what they test
	}
	for _, ignored := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(ignored) { // by nohup, or a shell's &; our children are to get it
			signal.Notify(make(chan os.Signal, 1), ignored)
		}
	}
	return m.Run()
}

// canary is a password that no output may contain.
const canary = "s3cr3t-canary"

// A cli calls the command with a store of its own.
type cli struct {
	t      *testing.T
	binary string
	dir    string
	store  string // LEASEHOLD_STORE
	env    []string
	stdin  string

	started bool // startProgram was called
}

func newCLI(t *testing.T) *cli {
	t.Helper()
	dir := t.TempDir()
	return &cli{t: t, binary: binary, dir: dir, store: "sqlite:" + filepath.Join(dir, "locks.db")}
}

// An outcome is how a call ended.
type outcome struct {
	args           []string
	stdout, stderr string
	code           int
}

// patience is how long a busy machine may take for what is no promise.
const patience = 2 * time.Minute

// callBound ends a call that hangs.
const callBound = patience

// call runs the command to its end.
func (c *cli) call(args ...string) outcome {
	c.t.Helper()
	return c.exec(c.binary, args...)
}

// exec runs any program with the environment of the command.
func (c *cli) exec(program string, args ...string) outcome {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.stdin), &stdout, &stderr
	cmd.Env = append(os.Environ(), "HOME="+c.dir, "XDG_STATE_HOME=", "XDG_CONFIG_HOME=", "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	if c.store != "" {
		cmd.Env = append(cmd.Env, "LEASEHOLD_STORE="+c.store)
	}
	cmd.Env = append(cmd.Env, c.env...)
	cmd.Dir = c.dir
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("run %s: %v", program, err)
	}
	if ctx.Err() != nil {
		c.t.Fatalf("%s %q does not end; it wrote %q", program, args, stderr.String())
	}
	o := outcome{args, stdout.String(), stderr.String(), shellCode(cmd.ProcessState)}
	if strings.Contains(o.stdout+o.stderr, canary) {
		c.t.Errorf("%q shows a password:\n%s%s", args, o.stdout, o.stderr)
	}
	return o
}

// shellCode is the exit code as a shell counts it.
func shellCode(p *os.ProcessState) int {
	if status, ok := p.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignal + int(status.Signal())
	}
	return p.ExitCode()
}

// want calls the command and checks its exit code.
func (c *cli) want(code int, args ...string) outcome {
	c.t.Helper()
	o := c.call(args...)
	o.wantCode(c.t, code)
	return o
}

func (o outcome) wantCode(t *testing.T, code int) {
	t.Helper()
	if o.code != code {
		t.Fatalf("%q: exit code %d, want %d\nstdout: %s\nstderr: %s", o.args, o.code, code, o.stdout, o.stderr)
	}
	if code != 0 && !strings.Contains(o.stderr, "leasehold: ") {
		t.Errorf("%q: exit code %d without a message: %q", o.args, code, o.stderr)
	}
}

// json decodes the output into v.
func (o outcome) json(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(o.stdout), v); err != nil {
		t.Fatalf("%q: %v in %q", o.args, err, o.stdout)
	}
}

// contains checks that text has all the parts.
func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("no %q in:\n%s", p, text)
		}
	}
}

// acquire takes a lease and leaves it held.
func (c *cli) acquire(args ...string) leaseView {
	c.t.Helper()
	var v leaseView
	c.want(0, append([]string{"acquire", "--json"}, args...)...).json(c.t, &v)
	return v
}

func TestHelp(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	bare := c.want(0)
	contains(t, bare.stdout, "Hold a lock:", "leasehold run", "demo", "sqlite:PATH", "--store")
	if help := c.want(0, "--help"); help.stdout != bare.stdout {
		t.Error("leasehold alone does not print the help text")
	}
	for _, name := range []string{"run", "lead", "acquire", "renew", "release", "ls", "show", "top", "evict", "reset", "limit", "doctor", "serve", "version", "man", "demo", "demo seckill"} {
		o := c.want(0, append(strings.Fields(name), "--help")...)
		contains(t, o.stdout, "Usage:", "leasehold "+name, "--json")
	}
	if _, err := os.Stat(filepath.Join(c.dir, "locks.db")); err == nil {
		t.Error("help has created the store")
	}
}

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, line := range []string{
		"nosuch", "--nosuch", "ls --nosuch", "ls a b", "show", "show a b", "acquire", "acquire a b", "renew", "release",
		"renew a", "release a", "evict a", "evict a --owner x", "evict a --reason x", "evict", "version x", "man", "demo nosuch",
		"acquire a --ttl", "acquire a --ttl 0", "acquire a --ttl -5s", "acquire a --ttl ten", "acquire a --ttl 1e99", "acquire a --ttl NaN",
		"acquire a --ttl 1ns", "renew a b --ttl 0", "acquire a -w -1", "acquire a -w x", "acquire a -n -w 1", "acquire a --slots 0", "acquire a --slots -1",
		"acquire a --slots x", "acquire a --slots 1.5", "demo seckill x", "demo seckill --buyers 0", "demo seckill --buyers 3 --processes 4",
		"demo seckill --stock 0", "demo seckill --processes 0", "demo seckill --buyers x",
	} {
		o := c.want(64, strings.Fields(line)...)
		// What a script evaluates must fail.
		if o.stdout != "" && o.stdout != "(exit 64)\n" {
			t.Errorf("%q: writes to stdout: %q", line, o.stdout)
		}
	}
	// A misplaced argument may be a password or an owner. c.exec checks that the canary is not printed.
	for _, secret := range []string{"redis://u:" + canary + "@h", "u:" + canary + "@h", "owner-" + canary} {
		for _, args := range [][]string{{}, {"help"}, {"completion"}, {"doctor"}, {"release", "job", "owner"}, {"evict", "job"}} {
			c.want(64, append(args, secret)...)
		}
	}
	contains(t, c.want(64, "aquire", "x").stderr, `unknown command "aquire"`, "acquire", "--help")
	contains(t, c.want(64, "show").stderr, "NAME is missing")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	contains(t, c.want(0, "version").stdout, "leasehold ", "commit ", "go1.")
	contains(t, c.want(0, "--version").stdout, "leasehold ")
	var v versionView
	c.want(0, "version", "--json").json(t, &v)
	if v.Version == "" || v.Commit == "" || !strings.HasPrefix(v.Go, "go1.") {
		t.Errorf("got %+v", v)
	}
}

func TestManual(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	contains(t, c.want(0, "man", "pages/man1").stdout, "pages to pages/man1")
	for _, page := range []string{"leasehold", "leasehold-run", "leasehold-evict", "leasehold-demo-seckill"} {
		text, err := os.ReadFile(filepath.Join(c.dir, "pages/man1", page+".1"))
		if err != nil {
			t.Fatal(err)
		}
		contains(t, string(text), ".SH NAME", ".SH SYNOPSIS", "leasehold")
	}
	text, err := os.ReadFile(filepath.Join(c.dir, "pages/man1/leasehold.1"))
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(text), "server_name", "prefix=leasehold_&pooled")
	for _, hidden := range []string{"guard", "demo-seckill-buyers"} {
		if _, err := os.Stat(filepath.Join(c.dir, "pages/man1/leasehold-"+hidden+".1")); err == nil {
			t.Errorf("a page for the hidden %s", hidden)
		}
	}
	everyFlag(newRootCommand(&app{}), func(cmd *cobra.Command, f *pflag.Flag) {
		page := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
		text, err := os.ReadFile(filepath.Join(c.dir, "pages/man1", page))
		if err != nil || !strings.Contains(string(text), bold("--"+f.Name)) {
			t.Errorf("%s has no --%s: %v", page, f.Name, err)
		}
	})
	var pages []string
	c.want(0, "man", "--json", "pages/man1").json(t, &pages)
	if len(pages) < 12 {
		t.Errorf("pages: %q", pages)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	contains(t, c.want(70, "man", "file").stderr, "file")
}

// everyFlag calls do for each flag of root and its commands, as far as people are to see them.
func everyFlag(root *cobra.Command, do func(*cobra.Command, *pflag.Flag)) {
	visible := func(f *pflag.Flag) {
		if !f.Hidden {
			do(root, f)
		}
	}
	root.LocalFlags().VisitAll(visible)
	root.InheritedFlags().VisitAll(visible)
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() {
			everyFlag(cmd, do)
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if o := c.want(0, "completion", shell); len(o.stdout) < 1000 {
			t.Errorf("%s: only %q", shell, o.stdout)
		}
	}
	contains(t, c.want(64, "completion", "tcsh").stderr, `unknown command "tcsh"`)
	l := c.acquire("deploy/web")
	c.acquire("backup")
	for _, line := range []string{"show", "evict", "run", "release", "ls"} {
		o := c.want(0, "__complete", line, "dep")
		if !strings.HasPrefix(o.stdout, "deploy/web\n") || strings.Contains(o.stdout, "backup") {
			t.Errorf("%s dep<TAB>: %q", line, o.stdout)
		}
	}
	contains(t, c.want(0, "__complete", "evict", "deploy/web", "--owner", "").stdout, l.Owner[:8])
	c.store = "sqlite:/nonexistent/locks.db"
	if o := c.want(0, "__complete", "show", ""); !strings.HasPrefix(o.stdout, ":") {
		t.Errorf("a store that is missing offers %q", o.stdout)
	}
}

// missing checks that a script did not write a file.
func (c *cli) missing(name string) {
	c.t.Helper()
	if _, err := os.Stat(filepath.Join(c.dir, name)); err == nil {
		c.t.Errorf("%s was written", name)
	}
}

// wantRun runs to the end and checks nothing but the exit code.
func (c *cli) wantRun(code int, args ...string) outcome {
	c.t.Helper()
	o := c.call(append([]string{"run"}, args...)...)
	if o.code != code {
		c.t.Fatalf("run %q: exit code %d, want %d\nstdout: %s\nstderr: %s", args, o.code, code, o.stdout, o.stderr)
	}
	return o
}
