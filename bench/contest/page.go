package contest

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/table"
)

// pages is set by make bench.
var pages = flag.String("contest.pages", "", "write what was measured, and the conditions of the run, into the engine's page in this `folder`")

// part is the part of a page that this program writes.
const part = "run: written by make bench"

// Server records what is measured, such as "Redis 7.0.15", for the conditions of the run.
func Server(what string) {
	report.mu.Lock()
	defer report.mu.Unlock()
	if what = strings.TrimSpace(what); !slices.Contains(report.servers, what) {
		report.servers = append(report.servers, what)
	}
}

// Version returns the first line of a command's output.
func Version(tb testing.TB, command string, args ...string) string {
	tb.Helper()
	out, err := exec.Command(command, args...).Output()
	if err != nil {
		tb.Fatalf("%s: %v", command, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// A run describes the conditions of a measurement.
type run struct {
	began time.Time
	load  string // load of the machine, before
}

func beginRun() run { return run{time.Now().UTC(), load()} }

// conditions returns what a reader must know to compare the run with another one.
func (r run) conditions(servers []string, rounds string) string {
	rounds = cmp.Or(rounds, "the median of several rounds, locks in turns")
	if testing.Short() {
		rounds = "one round of each part (-short)"
	}
	parts := "all parts"
	if pattern := flag.Lookup("test.bench").Value.String(); pattern != "." {
		parts = "the parts of -bench " + pattern
	}
	lines := []string{
		fmt.Sprintf("%s to %s, %s; %s", r.began.Format("2006-01-02 15:04"), time.Now().UTC().Format("15:04 UTC"), parts, rounds),
		fmt.Sprintf("%s %s/%s, %s, %d processors: %s", runtime.Version(), runtime.GOOS, runtime.GOARCH, kernel(), runtime.NumCPU(), processor()),
		fmt.Sprintf("load of the machine over 1, 5 and 15 minutes: %s before, %s after", r.load, load()),
	}
	if len(servers) > 0 {
		lines = append(lines, "servers: "+strings.Join(servers, "; "))
	}
	if libraries := libraries(); len(libraries) > 0 {
		lines = append(lines, "libraries: "+strings.Join(libraries, ", "))
	}
	return "- " + strings.Join(lines, "\n- ") + "\n"
}

func load() string { return firstFields("/proc/loadavg", 3) }

// kernel returns the version of the kernel, without suffixes of its builder.
func kernel() string {
	version, _, _ := strings.Cut(firstFields("/proc/sys/kernel/osrelease", 1), "-")
	return "Linux " + version
}

// firstFields returns the first n fields of a file, or "unknown".
func firstFields(file string, n int) string {
	text, _ := os.ReadFile(file) // other systems do not have it
	fields := strings.Fields(string(text))
	if len(fields) < n {
		return "unknown"
	}
	return strings.Join(fields[:n], " ")
}

func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // other systems do not have it
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// libraries returns the modules that this package's tests use and bench requires directly, except
// Leasehold.
func libraries() (all []string) {
	const used = "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}"
	out, _ := exec.Command("go", "list", "-deps", "-test", "-f", used, ".").Output() // after an error no library is listed
	required, _ := os.ReadFile("../go.mod")
	for line := range strings.Lines(string(out)) {
		library := strings.TrimSpace(line)
		path, _, _ := strings.Cut(library, " ")
		direct := regexp.MustCompile(`(?m)^\s(require )?` + regexp.QuoteMeta(path) + ` \S+$`)
		if path != "" && direct.Match(required) && !slices.Contains(all, library) {
			all = append(all, library)
		}
	}
	return all
}

// writePage replaces the results of a former run in the engine's page.
func (e *Engine) writePage(folder string, r run) error {
	var tables bytes.Buffer
	report.print(&tables, e.Name)
	if tables.Len() == 0 {
		return nil
	}
	report.mu.Lock()
	written := r.conditions(report.servers, e.Rounds) + "\n```\n" + strings.Trim(tables.String(), "\n") + "\n```\n"
	report.mu.Unlock()
	path := filepath.Join(folder, strings.ToLower(strings.ReplaceAll(e.Name, " ", "-"))+".md")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		empty := "# " + e.Name + "\n\n<!-- " + part + " -->\n<!-- /run -->\n"
		if err := os.WriteFile(path, []byte(empty), 0o644); err != nil {
			return err
		}
	}
	return table.Write(path, part, written)
}
