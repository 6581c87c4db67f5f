package killed

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A server that hangs when the command ends is told of while there is time left, and the end of the lease is the end.
func TestServerHangsAtTheEnd(t *testing.T) {
	t.Parallel()
	s, dir := stores(t)["redis"](), t.TempDir()
	var said bytes.Buffer
	cmd := exec.Command(binary, "run", "--at-least", "1h", "--ttl", "20s", "--also", "y", "x", "--", "sh", "-c", "echo > ready; while ! [ -e go ]; do sleep 0.02; done")
	cmd.Env, cmd.Dir, cmd.Stderr = append(os.Environ(), "LEASEHOLD_STORE="+s.url, "HOME="+dir), dir, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); !exists(filepath.Join(dir, "ready")); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the command did not start")
		}
	}
	defer s.pause()()
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v, want exit code 0", err)
	}
	for _, want := range []string{"has not answered for 5s", "Trying again until ", "may run again before its time"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("no %q in:\n%s", want, said.String())
		}
	}
}

// A job that is begun beside a server that hangs, and is not run, does not count as run in its period.
func TestServerHangsWhenAJobBegins(t *testing.T) {
	t.Parallel()
	for name, start := range stores(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, dir := start(), t.TempDir()
			if s.pause == nil {
				t.Skip("it has no server")
			}
			if err := s.command(dir, "run", "-n", "warm", "--", "true").Run(); err != nil {
				t.Fatal(err)
			}
			resume := s.pause()
			err := s.command(dir, "run", "-n", "--once-per", "24h", "job", "--", "touch", "ran").Run()
			resume()
			if exists(filepath.Join(dir, "ran")) || err == nil {
				t.Fatalf("it ran: %v", err)
			}
			for end := time.Now().Add(time.Minute); !exists(filepath.Join(dir, "ran")); time.Sleep(200 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("nobody runs it")
				}
				if err := s.command(dir, "run", "-n", "--once-per", "24h", "--ok-if-busy", "job", "--", "touch", "ran").Run(); err != nil {
					t.Errorf("the next one: %v", err)
				}
			}
		})
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
