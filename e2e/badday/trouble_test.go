package badday

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// patience is how long a busy machine may take for what is no promise.
const patience = 2 * time.Minute

// A trouble is a store that refuses from a moment on, and again serves from another on.
type trouble struct {
	url         string
	begin, end  func()
	says        string // an error has it
	holdersLose bool   // it refuses renewals too
}

var troubles = map[string]func(t *testing.T) trouble{
	"redis/password": func(t *testing.T) trouble {
		r := servers.StartRedis(t)
		r.Must(t, "ACL", "SETUSER", "locker", "on", ">one", "~*", "&*", "+@all")
		return trouble{
			url: "redis://locker:one@" + r.Addr(), says: "WRONGPASS", holdersLose: true,
			begin: func() {
				r.Must(t, "ACL", "SETUSER", "locker", "resetpass", ">two")
				r.Must(t, "CLIENT", "KILL", "USER", "locker")
			},
			end: func() { r.Must(t, "ACL", "SETUSER", "locker", "resetpass", ">one") },
		}
	},
	"redis/full": func(t *testing.T) trouble {
		r := servers.StartRedis(t)
		return trouble{
			url: "redis://" + r.Addr(), says: "OOM",
			begin: func() { r.Must(t, "CONFIG", "SET", "maxmemory", "1") },
			end:   func() { r.Must(t, "CONFIG", "SET", "maxmemory", "0") },
		}
	},
	"redis/disk": func(t *testing.T) trouble {
		r := servers.StartRedis(t, "--save", "3600 1000000", "--enable-protected-configs", "yes")
		dir := filepath.Join(t.TempDir(), "gone")
		return trouble{
			url: "redis://" + r.Addr(), says: "MISCONF", holdersLose: true,
			begin: func() {
				must(t, os.Mkdir(dir, 0o700))
				r.Must(t, "CONFIG", "SET", "dir", dir)
				must(t, os.Remove(dir))
				r.Must(t, "BGSAVE")
				until(t, "a save that failed", func() bool {
					return strings.Contains(r.Must(t, "INFO", "persistence"), "rdb_last_bgsave_status:err")
				})
			},
			end: func() { r.Must(t, "CONFIG", "SET", "stop-writes-on-bgsave-error", "no") },
		}
	},
	"redis/certificate": func(t *testing.T) trouble {
		c := newCertificates(t, "")
		ca := filepath.Join(t.TempDir(), "ca.crt") // of the first authority, whom the client goes on to trust
		must(t, os.WriteFile(ca, c.files(0)["ca.crt"], 0o600))
		port := servers.FreePorts(t, 1)[0]
		r := servers.StartRedis(t, "--tls-port", fmt.Sprint(port), "--tls-cert-file", c.path("tls.crt"), "--tls-key-file", c.path("tls.key"), "--tls-ca-cert-file", c.path("ca.crt"), "--tls-auth-clients", "no")
		serve := func(generation int) func() {
			return func() {
				c.put(generation)
				r.Must(t, "CONFIG", "SET", "tls-cert-file", c.path("tls.crt"), "tls-key-file", c.path("tls.key"))
				_, _ = r.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
				_, _ = r.Do("CLIENT", "KILL", "TYPE", "pubsub")
			}
		}
		return trouble{
			url:  fmt.Sprintf("rediss://127.0.0.1:%d?ca_file=%s", port, url.QueryEscape(ca)),
			says: "certificate signed by unknown authority", holdersLose: true, begin: serve(1), end: serve(0),
		}
	},
	"postgres/read-only": func(t *testing.T) trouble {
		p := servers.StartPostgres(t)
		set := func(to string) func() {
			return func() {
				p.Must(t, "ALTER SYSTEM SET default_transaction_read_only = "+to)
				p.Must(t, "SELECT pg_reload_conf()")
			}
		}
		return trouble{url: "postgres://postgres@" + p.Addr() + "/postgres", says: "the database is read-only", holdersLose: true, begin: set("on"), end: set("off")}
	},
	"postgres/rights": func(t *testing.T) trouble {
		p := servers.StartPostgres(t)
		p.Must(t, "CREATE ROLE locker LOGIN", "GRANT CREATE ON SCHEMA public TO locker")
		store := "postgres://locker@" + p.Addr() + "/postgres"
		if out, code := command(t, store, "run", "x", "--", "true"); code != 0 { // it makes the tables
			t.Fatalf("exit code %d: %s", code, out)
		}
		p.Must(t, "ALTER TABLE leasehold_locks OWNER TO postgres")
		right := func(verb string) func() {
			return func() { p.Must(t, verb+" locker") }
		}
		right("GRANT ALL ON leasehold_locks TO")()
		return trouble{url: store, says: "lacks a right", holdersLose: true, begin: right("REVOKE ALL ON leasehold_locks FROM"), end: right("GRANT ALL ON leasehold_locks TO")}
	},
}

// A candidate that cannot campaign says why, once, and when it can again; then it leads.
func TestLeadSaysWhyItCannotCampaign(t *testing.T) {
	t.Parallel()
	for name, start := range troubles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr, dir := start(t), t.TempDir()
			said := background(t, dir, tr.url, "lead", "--ttl", "4s", "sched", "--", "sh", "-c", "echo >> terms; while ! [ -e go ]; do sleep 0.05; done; rm go")
			until(t, "a term", func() bool { return lines(dir, "terms") == 1 })
			tr.begin()
			if !tr.holdersLose {
				must(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
			}
			word := regexp.MustCompile("cannot acquire sched: .*" + regexp.QuoteMeta(tr.says) + ".*; trying again")
			until(t, "a word", func() bool { return word.MatchString(said()) })
			time.Sleep(3 * time.Second) // several campaigns
			if n := len(word.FindAllString(said(), -1)); n > 2 {
				t.Errorf("said %d times:\n%s", n, said())
			}
			tr.end()
			until(t, "another term", func() bool { return lines(dir, "terms") == 2 })
			until(t, "its end", func() bool { return strings.Contains(said(), "the store answers again") })
		})
	}
}

// A run whose wait is disturbed says so, as JSON too.
func TestRunSaysWhyItWaits(t *testing.T) {
	t.Parallel()
	for name, start := range troubles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr, dir := start(t), t.TempDir()
			if out, code := command(t, tr.url, "acquire", "--ttl", "1h", "x"); code != 0 {
				t.Fatalf("exit code %d: %s", code, out)
			}
			said := background(t, dir, tr.url, "run", "--json", "x", "--", "true")
			until(t, "a place", func() bool {
				out, _ := command(t, tr.url, "show", "x")
				return strings.Contains(out, "true[")
			})
			tr.begin()
			until(t, "a word", func() bool { return strings.Contains(said(), tr.says) })
			tr.end()
			until(t, "its end", func() bool { return strings.Contains(said(), "the store answers again") })
			var kinds []string
			for line := range strings.Lines(said()) {
				var e struct{ Event, Name, Text string }
				if err := json.Unmarshal([]byte(line), &e); err != nil || e.Text == "" {
					t.Errorf("%q: %v", line, err)
				}
				kinds = append(kinds, e.Event)
			}
			if kinds[0] != "warning" || kinds[len(kinds)-1] != "recovered" {
				t.Errorf("told %q", kinds)
			}
		})
	}
}

// command runs the command to its end.
func command(t *testing.T, store string, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env, cmd.Dir = append(os.Environ(), "LEASEHOLD_STORE="+store, "HOME="+t.TempDir()), t.TempDir()
	text, _ := cmd.CombinedOutput()
	return string(text), cmd.ProcessState.ExitCode()
}

// background starts the command, and ends it with the test. said is its standard error so far.
func background(t *testing.T, dir, store string, args ...string) (said func() string) {
	t.Helper()
	cmd, text := exec.Command(binary, args...), &buffer{}
	cmd.Env, cmd.Dir, cmd.Stderr = append(os.Environ(), "LEASEHOLD_STORE="+store, "HOME="+dir), dir, text
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("it said:\n%s", text)
		}
	})
	return text.String
}

// A buffer is read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func lines(dir, name string) int {
	text, _ := os.ReadFile(filepath.Join(dir, name))
	return bytes.Count(text, []byte("\n"))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until polls until ok.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s: not within %v", what, patience)
}
