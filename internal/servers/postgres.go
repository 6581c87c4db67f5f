package servers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A Postgres is one PostgreSQL server. Its user postgres needs no password.
type Postgres struct{ database }

// newPostgres returns a server that has no files yet.
func newPostgres(t testing.TB) *Postgres {
	t.Helper()
	p := &Postgres{newDatabase(t, "postgres", postgresBinary(t, "postgres"), askPostgres)}
	p.args = []string{"-D", p.Data(), "-p", fmt.Sprint(p.Port), "-h", "127.0.0.1", "-k", p.dir}
	return p
}

// StartPostgres starts a PostgreSQL with an empty cluster. settings have the form name=value.
func StartPostgres(t testing.TB, settings ...string) *Postgres {
	t.Helper()
	p, initdb := newPostgres(t), postgresBinary(t, "initdb")
	copyOf(t, "postgres", p.dir, version(t, initdb), func(folder string) {
		runAs(t, "postgres", initdb, "-D", folder, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync")
	})
	for _, s := range settings {
		p.args = append(p.args, "-c", s)
	}
	p.begin(t)
	return p
}

// StartStandby starts a read-only copy of p. It returns when the copy follows p: before that, the
// copy gets none of p's changes until p is shut down.
func (p *Postgres) StartStandby(t testing.TB) *Postgres {
	t.Helper()
	s := newPostgres(t)
	runAs(t, "postgres", postgresBinary(t, "pg_basebackup"), "-D", s.Data(), "-h", "127.0.0.1", "-p", fmt.Sprint(p.Port), "-U", "postgres", "-R", "-c", "fast")
	s.begin(t)
	s.until("a standby that follows", func() error {
		n, err := s.Ask("SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'")
		if err == nil && n != "1" {
			err = errors.New("it does not")
		}
		return err
	})
	return s
}

// postgresBinary finds a program of the server. Debian keeps them in a folder of their own.
func postgresBinary(t testing.TB, name string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err == nil || Root("postgres") != "" {
		return Need(t, "postgres", name)
	}
	const where = "/usr/lib/postgresql/*/bin/"
	found, _ := filepath.Glob(where + name) // the pattern is valid
	if len(found) == 0 {
		Need(t, "postgres", "psql")
		found, _ = filepath.Glob(where + name)
	}
	if len(found) == 0 {
		t.Fatalf("%s is missing", name)
	}
	return found[len(found)-1]
}

// begin starts the server for the first time. Outside benchmarks its dynamic shared memory is in
// files of its folder.
func (p *Postgres) begin(t testing.TB) {
	t.Helper()
	if !measures(t) {
		p.args = append(p.args, "-c", "dynamic_shared_memory_type=mmap")
	}
	t.Cleanup(p.forget)
	p.Start(t)
}

// forget removes the System V segment that the server has nevertheless. A killed server leaves the
// segment behind, and the file with its number. A system has only some thousands of segments.
func (p *Postgres) forget() {
	text, err := os.ReadFile(filepath.Join(p.Data(), "postmaster.pid"))
	if err != nil {
		return
	}
	const number = 6 // the line with the segment's key and number
	if lines := strings.Split(string(text), "\n"); len(lines) > number {
		if segment := strings.Fields(lines[number]); len(segment) == 2 {
			_ = exec.Command("ipcrm", "-m", segment[1]).Run() // it may be gone
		}
	}
}

// Kill kills the server and its backend processes.
func (p *Postgres) Kill() {
	children := p.children()
	p.Process.Kill()
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
	}
	// A server does not start while backends of an earlier one live.
	for end := time.Now().Add(readyWithin); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if !slices.ContainsFunc(children, func(pid int) bool { return syscall.Kill(pid, 0) == nil }) {
			return
		}
	}
	p.life.Fatal("the processes of a killed server do not end")
}

// Pause stops the server and its backend processes until resume is called.
func (p *Postgres) Pause() (resume func()) {
	p.Signal(syscall.SIGSTOP)
	children := p.children()
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // it may be gone
	}
	return func() {
		for _, pid := range children {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		p.Signal(syscall.SIGCONT)
	}
}

func (p *Postgres) children() (all []int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.Pid())) // it fails once the server has gone
	for _, field := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// Disk mounts an empty disk of a size such as "2m" for the server.
func (p *Postgres) Disk(t testing.TB, size string) (dir string) { return small(t, "postgres", size) }

// URL returns the URL of the database postgres, for the user postgres. It ends with a parameter.
func (p *Postgres) URL() string {
	return "postgres://postgres@" + p.Addr() + "/postgres?sslmode=disable"
}
