// Package clients runs the clients of other languages, and the code in their pages, against real instances of "leasehold
// serve" over Redis.
package clients

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/e2e/described"
	"github.com/leasehold-go/leasehold/e2e/program"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// long is what a whole runtime's tests may take on a busy machine.
const long = 5 * time.Minute

var binary string

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		recordedMain()
	}
	os.Exit(program.Main(m, &binary))
}

// An instance is a process that serves a store, behind a balancer that has all that passes held
// against the OpenAPI description.
type instance struct {
	url string
	cmd *exec.Cmd
}

func serve(t *testing.T, store string) *instance {
	t.Helper()
	cmd := exec.Command(binary, "--store", store, "serve", "--listen", "127.0.0.1:0")
	said, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be gone
		_ = cmd.Wait()         // it was killed
	})
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		if address := regexp.MustCompile(`http://([^\s"]+)`).FindStringSubmatch(lines.Text()); address != nil {
			go func() {
				for lines.Scan() {
				}
			}()
			return &instance{"http://" + described.Balance(t, address[1]), cmd}
		}
	}
	t.Fatal("the server does not start")
	return nil
}

// run runs a program of another runtime and returns what it printed.
func run(t *testing.T, env []string, dir, name string, args ...string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, append(os.Environ(), env...), time.Second
	text, err := cmd.CombinedOutput()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		t.Fatalf("%s: %v (scripts/install-tools installs it)", name, err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

func folder(t *testing.T, path string) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestClientsPassTheirTests(t *testing.T) {
	t.Parallel()
	python := func(file string) []string {
		return []string{"clients/python", "/usr/bin/python3", "-B", "-m", "unittest", "discover", "-s", "tests", "-p", file}
	}
	for name, command := range map[string][]string{
		"python":         python("test_sync.py"),
		"python asyncio": python("test_async.py"),
		"node":           {"clients/node", "node", "--test", "--test-reporter=spec", "test/leasehold.test.mjs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := append(recorded(t), "LEASEHOLD_STORE="+redis(t), "PYTHONPATH=src")
			if out, code := run(t, env, folder(t, command[0]), command[1], command[2:]...); code != 0 {
				t.Errorf("%s", out)
			}
		})
	}
}

// blocks are the fenced blocks of a page in one language.
func blocks(t *testing.T, page, language string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(folder(t, page))
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		all = append(all, found[1])
	}
	if len(all) == 0 {
		t.Fatalf("no code in %s in %s", language, page)
	}
	return all
}

func write(t *testing.T, dir, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The code of docs/clients.md runs, block after block, so that each shows that the one before released.
func TestPageRuns(t *testing.T) {
	t.Parallel()
	server := serve(t, redis(t))
	env := []string{"LEASEHOLD_URL=" + server.url, "PYTHONPATH=" + folder(t, "clients/python/src")}
	dir := t.TempDir() // with the package of Node, as npm lays it
	if err := os.Mkdir(filepath.Join(dir, "node_modules"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(folder(t, "clients/node"), filepath.Join(dir, "node_modules", "leasehold")); err != nil {
		t.Fatal(err)
	}
	holding := `holding nightly-report with token [0-9]+`
	curl := `(?s)"outcome":"granted".*"outcome":"granted".*"outcome":"done"`
	for _, language := range []struct {
		name, ext, head string
		command         []string
		want            []string // what each block prints
	}{
		{"python", ".py", "", []string{"/usr/bin/python3", "-B"}, []string{holding}},
		{"js", ".mjs", "", []string{"node"}, []string{holding}},
		{"sh", ".sh", "", []string{"dash"}, []string{curl, "it is mine"}},
		{"sh", ".sh", "", []string{"bash"}, []string{curl, "it is mine"}},
		{"php", ".php", "<?php\n", []string{"php"}, []string{"step 3 with token [0-9]+"}},
	} {
		all := blocks(t, "docs/clients.md", language.name)
		if len(all) != len(language.want) {
			t.Fatalf("%d blocks in %s, want %d", len(all), language.name, len(language.want))
		}
		for i, text := range all {
			text = strings.ReplaceAll(language.head+text, "http://127.0.0.1:7400", server.url)
			for _, of := range []string{"clients/php/Lease.php", "clients/sh/with_lease.sh"} {
				text = strings.ReplaceAll(text, of, folder(t, of))
			}
			args := append(slices.Clone(language.command[1:]), write(t, dir, "a"+language.ext, text))
			out, code := run(t, env, dir, language.command[0], args...)
			if code != 0 || !regexp.MustCompile(language.want[i]).MatchString(out) {
				t.Errorf("%v, block %d: exit code %d, %s", language.command, i, code, out)
			}
		}
	}
	if left := ask(t, "GET", server.url+"/v1/locks", ""); strings.Contains(left, "nightly-report") || strings.Contains(left, "deploy") {
		t.Errorf("left: %s", left)
	}
}

// The commands of docs/limits.md run, and the last sets a limit.
func TestLimitsPageRuns(t *testing.T) {
	t.Parallel()
	server := serve(t, redis(t))
	for _, text := range blocks(t, "docs/limits.md", "sh") {
		text = strings.NewReplacer("http://127.0.0.1:7400", server.url, "leasehold ", binary+" ", "./export", "echo exported").Replace(text)
		if out, code := run(t, []string{"LEASEHOLD_STORE=" + server.url}, t.TempDir(), "sh", "-ec", text); code != 0 {
			t.Fatalf("exit code %d, %s", code, out)
		}
	}
	if lock := ask(t, "GET", server.url+"/v1/lock?name=tenant/7", ""); !strings.Contains(lock, `"limit":3`) {
		t.Errorf("the limit is not 3: %s", lock)
	}
}

// ask makes one call that is to be served.
func ask(t *testing.T, method, url, body string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s %s %v", method, url, resp.Status, text, err)
	}
	return string(text)
}

// alive reports whether a process runs: who waits for it may have left it to nobody who does.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// ends waits for the end of a command that was killed: it comes a moment later.
func ends(t *testing.T, section int) {
	t.Helper()
	for until := time.Now().Add(time.Minute); alive(section); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Error("the command goes on")
			_ = syscall.Kill(-section, syscall.SIGKILL)
			return
		}
	}
}

const phpUse = `
require getenv('FILE');
$lease = new Lease(getenv('LEASEHOLD_URL'), getenv('NAME'), ttl: 20);
echo "held\n";
try {
    for (;;) {
        $lease->check();
        usleep(2_000); // of the 202 ms that a copy ends early
    }
} catch (RuntimeException $e) {
    printf("over %d %.6f\n", $e->getCode(), microtime(true));
    exit($e->getCode() === 410 ? 76 : 1);
}
`

const phpYields = `
require getenv('FILE');
$lease = new Lease(getenv('LEASEHOLD_URL'), 'batch', ttl: 6, yields: true);
echo "held\n";
for ($steps = 0; !$lease->wanted; $steps++) {
    $lease->check();
    usleep(2_000);
}
$lease->release();
`

const phpWeighs = `
require getenv('FILE');
$take = fn (int $weight) => new Lease(getenv('LEASEHOLD_URL'), 'gpu', ttl: 30, limit: 5, weight: $weight);
$lease = $take(3);
foreach ([3 => 409, 6 => 422] as $weight => $want) {
    try {
        $take($weight);
        exit("$weight beside 3 of 5");
    } catch (RuntimeException $e) {
        $e->getCode() === $want or exit("$weight: {$e->getMessage()}");
    }
}
$take(2)->release();
$lease->release();
echo "done\n";
`

// A lease in PHP counts by its weight.
func TestCopyWeighs(t *testing.T) {
	t.Parallel()
	env := []string{"LEASEHOLD_URL=" + serve(t, "memory:").url, "FILE=" + folder(t, "clients/php/Lease.php")}
	if out, code := run(t, env, t.TempDir(), "php", write(t, t.TempDir(), "a", "<?php"+phpWeighs)); code != 0 || out != "done\n" {
		t.Errorf("exit code %d, %s", code, out)
	}
}

// A batch in PHP gives way once a renewal says that others wait.
func TestCopyGivesWay(t *testing.T) {
	t.Parallel()
	server := serve(t, "memory:")
	cmd := exec.Command("php", write(t, t.TempDir(), "a", "<?php"+phpYields))
	cmd.Env = append(os.Environ(), "LEASEHOLD_URL="+server.url, "FILE="+folder(t, "clients/php/Lease.php"))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("%q, %v", line, err)
	}
	ask(t, "POST", server.url+"/v1/acquire", `{"name":"batch","ttl_ms":60000,"wait_ms":30000}`)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// A server that hangs: each file to copy ends its section before the engine gives the lease on, a hundredth of the TTL
// and 2 ms: on a busy machine that must be more than a process waits for its turn.
func TestCopiesEndBeforeAnotherHolds(t *testing.T) {
	t.Parallel()
	store := redis(t)
	other := serve(t, store)
	for _, shell := range []string{"php", "dash", "bash"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			hung, name := serve(t, store), "hung/"+shell
			file, use := "clients/sh/with_lease.sh", `. "$FILE"; with_lease "$NAME" 20 sh -c 'echo held $$; while :; do sleep 0.05; done'`
			if shell == "php" {
				file, use = "clients/php/Lease.php", "<?php"+phpUse
			}
			cmd := exec.Command(shell, write(t, t.TempDir(), "a", use))
			cmd.Env = append(os.Environ(), "LEASEHOLD_URL="+hung.url, "NAME="+name, "FILE="+folder(t, file))
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			var section int // its process, where it is one of its own
			said := bufio.NewReader(out)
			line, err := said.ReadString('\n')
			if _, _ = fmt.Sscanf(line, "held %d", &section); !strings.HasPrefix(line, "held") {
				t.Fatalf("%q, %v", line, err)
			}
			ended := make(chan time.Time, 1)
			go func() {
				var code int
				var at float64 // when the section itself noticed: to end the process takes a busy machine longer
				rest, _ := io.ReadAll(said)
				_ = cmd.Wait() // its code is asked for below
				if _, err := fmt.Sscanf(string(rest), "over %d %g", &code, &at); err == nil {
					ended <- time.UnixMicro(int64(at * 1e6))
				} else {
					ended <- time.Now()
				}
			}()
			if err := hung.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			ask(t, "POST", other.url+"/v1/acquire", fmt.Sprintf(`{"name":%q,"ttl_ms":60000,"wait_ms":30000}`, name))
			granted := time.Now()
			select {
			case at := <-ended:
				if !at.Before(granted) {
					t.Errorf("the section ended %v after the next one's grant", at.Sub(granted))
				}
			case <-time.After(time.Minute):
				t.Fatal("the section goes on")
			}
			if section > 0 && alive(section) {
				t.Error("the command goes on")
				_ = syscall.Kill(-section, syscall.SIGKILL)
			}
			if code := cmd.ProcessState.ExitCode(); code != 76 {
				t.Errorf("exit code %d, want 76", code)
			}
		})
	}
}

// A fake is a service that grants every acquire for ttl, after the delay late. It does not answer renewals, unless proxy is
// set: then it answers as a proxy would. If cut is set, it does not answer releases either. If alien is set, its grants name
// another owner.
type fake struct {
	ttl, late time.Duration
	cut       bool
	alien     bool
	proxy     string
	released  atomic.Bool
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var call struct{ Name, Owner string }
	_ = json.NewDecoder(r.Body).Decode(&call) // it is one of a copy
	_, _ = io.Copy(io.Discard, r.Body)        // else nothing tells that the client has gone
	if f.alien {
		call.Owner = "another"
	}
	switch r.URL.Path {
	case "/v1/acquire":
		time.Sleep(f.late)
		fmt.Fprintf(w, `{"outcome":"granted","name":%q,"owner":%q,"token":"1838477713367293952","ttl_ms":%d,"left_ms":%[3]d,"waited_ms":0}`,
			call.Name, call.Owner, f.ttl.Milliseconds())
	case "/v1/release":
		if call.Owner == "" {
			http.Error(w, "no owner", http.StatusBadRequest)
			return
		}
		if f.released.Store(true); f.cut {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, `{"outcome":"done"}`)
	default:
		if f.proxy != "" {
			http.Error(w, f.proxy, http.StatusBadGateway)
			return
		}
		<-r.Context().Done()
	}
}

// copied runs the section of a file to copy to its end. first is what a shell runs before.
func copied(t *testing.T, shell, url, php, command string, first ...string) (code int, took time.Duration) {
	t.Helper()
	file, use := "clients/sh/with_lease.sh", strings.Join(first, "\n")+`
		. "$FILE"; with_lease "$NAME" 20 sh -c "$COMMAND"`
	if shell == "php" {
		file, use = "clients/php/Lease.php", "<?php"+php
	}
	began := time.Now()
	out, code := run(t, []string{"LEASEHOLD_URL=" + url, "NAME=" + shell, "FILE=" + folder(t, file), "COMMAND=" + command}, t.TempDir(),
		shell, write(t, t.TempDir(), "a", use))
	t.Logf("exit code %d, %s", code, out)
	return code, time.Since(began)
}

// A grant may be shorter than what was asked for. Each file to copy ends its section by then.
func TestCopiesEndWithAShorterGrant(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"php", "dash", "bash"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			web := httptest.NewServer(&fake{ttl: 5 * time.Second})
			t.Cleanup(web.Close)
			code, took := copied(t, shell, web.URL, phpUse, "while :; do sleep 0.05; done")
			if code != 76 || took > 12*time.Second {
				t.Errorf("a section of 5 of 20 s ended with code %d after %v", code, took)
			}
		})
	}
}

// A lease that a shell's section has lost may live on at the service, which has applied the renewals that it did not answer.
// It is released, unless the service has reported its end.
func TestCopyGivesBackWhatItLost(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		shell, lost := []string{"dash", "bash"}[i/2], i%2 == 1
		t.Run(fmt.Sprint(shell, ", ", lost), func(t *testing.T) {
			t.Parallel()
			// On a busy machine the lease may be over before the first renewal is answered.
			for ttl := 5 * time.Second; ; ttl *= 2 {
				f := &fake{ttl: ttl}
				web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if lost && r.URL.Path == "/v1/renew" {
						w.WriteHeader(http.StatusGone)
						fmt.Fprint(w, `{"outcome":"lost"}`)
						return
					}
					f.ServeHTTP(w, r)
				}))
				code, _ := copied(t, shell, web.URL, "", "while :; do sleep 0.05; done", "set -eu")
				web.Close()
				if code != 76 {
					t.Errorf("exit code %d, want 76", code)
				}
				if got := f.released.Load(); got != lost {
					return
				} else if !lost || ttl > 30*time.Second {
					t.Fatalf("released: %t", got)
				}
			}
		})
	}
}

const phpTakes = `
require getenv('FILE');
try {
    new Lease(getenv('LEASEHOLD_URL'), getenv('NAME'), ttl: 20);
} catch (RuntimeException $e) {
    exit($e->getCode() === 503 ? 69 : 1);
}
`

// The grant of another owner is no answer.
func TestCopiesTakeNoOthersGrant(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"php", "dash", "bash"} {
		f := &fake{ttl: 20 * time.Second, alien: true}
		web := httptest.NewServer(f)
		t.Cleanup(web.Close)
		if code, _ := copied(t, shell, web.URL, phpTakes, "true"); code != 69 {
			t.Errorf("%s: exit code %d, want 69", shell, code)
		}
		if !f.released.Load() {
			t.Errorf("%s does not give back what it may have been granted", shell)
		}
	}
}

const phpShows = `
require getenv('FILE');
print_r($lease = new Lease(getenv('LEASEHOLD_URL'), getenv('NAME'), ttl: 20));
var_dump($lease);
`

// What PHP shows of a lease has no owner.
func TestCopyShowsNoOwner(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(&fake{ttl: 20 * time.Second})
	t.Cleanup(web.Close)
	env := []string{"LEASEHOLD_URL=" + web.URL, "NAME=shown", "FILE=" + folder(t, "clients/php/Lease.php")}
	out, code := run(t, env, t.TempDir(), "php", write(t, t.TempDir(), "a", "<?php"+phpShows))
	if code != 0 || regexp.MustCompile("[0-9a-f]{40}").MatchString(out) || !strings.Contains(out, "shown") {
		t.Errorf("exit code %d, %s", code, out)
	}
}

const phpHangs = `
require getenv('FILE');
$lease = new Lease(getenv('LEASEHOLD_URL'), getenv('NAME'), ttl: 120);
(new ReflectionProperty($lease, 'renewAt'))->setValue($lease, 0.0);
for ($i = 0; $i < 3; $i++) {
    $lease->check();
}
`

// A renewal that hangs holds a long section up for 5 s, once.
func TestCopiesBoundARenewal(t *testing.T) {
	t.Parallel()
	t.Run("php", func(t *testing.T) {
		t.Parallel()
		web := httptest.NewServer(&fake{ttl: 2 * time.Minute})
		t.Cleanup(web.Close)
		if code, took := copied(t, "php", web.URL, phpHangs, ""); code != 0 || took > 12*time.Second {
			t.Errorf("exit code %d after %v", code, took)
		}
	})
	for _, shell := range []string{"dash", "bash"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			web := httptest.NewServer(&fake{ttl: time.Hour, proxy: "upstream timed out"})
			t.Cleanup(web.Close)
			looks := `. "$FILE"
				curl() { command curl "$@"; case $* in *renew*) echo "$most" >>most ;; esac; }
				sleep() { command sleep "$@"; renew=0; }
				with_lease x 3600 sh -c 'until [ -s most ]; do sleep 0.05; done'
				sort -u most`
			env := []string{"LEASEHOLD_URL=" + web.URL, "FILE=" + folder(t, "clients/sh/with_lease.sh")}
			if out, code := run(t, env, t.TempDir(), shell, "-c", looks); code != 0 || out != "5\n" {
				t.Errorf("exit code %d, seconds of a renewal: %s", code, out)
			}
		})
	}
}

const phpWorks = `
require getenv('FILE');
$lease = new Lease(getenv('LEASEHOLD_URL'), getenv('NAME'), ttl: 6);
for ($end = hrtime(true) + 8e9; hrtime(true) < $end;) {
    $lease->check();
    usleep(100_000);
}
`

// One renewal that is not answered costs a lease in PHP nothing: the next one is asked for in time.
func TestCopyRenewsAfterARenewalThatHangs(t *testing.T) {
	t.Parallel()
	var renewals atomic.Int64
	f := &fake{ttl: 6 * time.Second}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/renew" && renewals.Add(1) > 1 {
			r.URL.Path = "/v1/acquire" // which is granted
		}
		f.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	if code, _ := copied(t, "php", web.URL, phpWorks, ""); code != 0 || renewals.Load() < 2 {
		t.Errorf("exit code %d after %d renewals", code, renewals.Load())
	}
}

// A long section in a shell ends a hundredth of its TTL early, and a second for what is cut off.
func TestCopyEndsEarlyForDrift(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"dash", "bash"} {
		for ttl, want := range map[int]string{3600: "3563\n", 60: "58\n"} {
			web := httptest.NewServer(&fake{ttl: time.Hour})
			t.Cleanup(web.Close)
			looks := fmt.Sprintf(`. "$FILE"; kill() { [ -n "${told-}" ] || echo $((end - sent)); told=1; return 1; }; with_lease drift %d true`, ttl)
			env := []string{"LEASEHOLD_URL=" + web.URL, "FILE=" + folder(t, "clients/sh/with_lease.sh")}
			if out, code := run(t, env, t.TempDir(), shell, "-c", looks); code != 0 || out != want {
				t.Errorf("%s: exit code %d, it counts on %s of %d s", shell, code, out, ttl)
			}
		}
	}
}

// A command reads what the shell's section is given to read, or nothing.
func TestCopyPassesItsInput(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"dash", "bash"} {
		web := httptest.NewServer(&fake{ttl: 20 * time.Second})
		t.Cleanup(web.Close)
		env := []string{"LEASEHOLD_URL=" + web.URL, "FILE=" + folder(t, "clients/sh/with_lease.sh")}
		reads := `. "$FILE"; echo input | with_lease x 20 cat; with_lease x 20 cat <&-; echo error | with_lease x 20 sh -c 'cat >&2'`
		if out, code := run(t, env, t.TempDir(), shell, "-c", reads); code != 0 || out != "input\nerror\n" {
			t.Errorf("%s: exit code %d, %s", shell, code, out)
		}
		third := `. "$FILE"; echo third | with_lease x 20 sh -c 'cat <&3' 3<&0 </dev/null`
		if out, code := run(t, env, t.TempDir(), shell, "-c", third); code != 0 || out != "third\n" {
			t.Errorf("%s, descriptor 3: exit code %d, %s", shell, code, out)
		}
	}
}

// A shell's section works under the settings of strict scripts, and their trace shows no owner.
func TestCopyUnderStrictSettings(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"dash", "bash"} {
		f := &fake{ttl: 20 * time.Second}
		web := httptest.NewServer(f)
		t.Cleanup(web.Close)
		env := []string{"LEASEHOLD_URL=" + web.URL, "FILE=" + folder(t, "clients/sh/with_lease.sh")}
		strict := `set -eux; IFS=$(printf '\n\t'); . "$FILE"; with_lease x 20 echo "it runs"`
		out, code := run(t, env, t.TempDir(), shell, "-c", strict)
		if code != 0 || !strings.Contains(out, "\nit runs\n") || regexp.MustCompile("[0-9a-f]{40}").MatchString(out) {
			t.Errorf("%s: exit code %d, %s", shell, code, out)
		}
		if !f.released.Load() {
			t.Errorf("%s: the lease is not released", shell)
		}
	}
}

// The list of processes shows no owner.
func TestCopyHidesItsOwner(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"dash", "bash"} {
		web := httptest.NewServer(&fake{ttl: 20 * time.Second})
		t.Cleanup(web.Close)
		env := []string{"LEASEHOLD_URL=" + web.URL, "FILE=" + folder(t, "clients/sh/with_lease.sh")}
		looks := `. "$FILE"
			curl() { if echo "$*" | grep -E '[0-9a-f]{40}' >&2; then return 2; fi; command curl "$@"; }
			with_lease x 20 true`
		if out, code := run(t, env, t.TempDir(), shell, "-c", looks); code != 0 || out != "" {
			t.Errorf("%s: exit code %d, %s", shell, code, out)
		}
	}
}

// A renewal of a shell's section that hangs ends a second before the lease. One that fails is
// followed by another within the lease, also after a shorter grant.
func TestCopyRenewsWithinItsLease(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		shell, ttl := []string{"dash", "bash"}[i/2], []int{7, 60}[i%2] // 7 is the least
		t.Run(fmt.Sprint(shell, ", ", ttl), func(t *testing.T) {
			t.Parallel()
			web := httptest.NewServer(&fake{ttl: 9 * time.Second, proxy: "upstream timed out"})
			t.Cleanup(web.Close)
			looks := fmt.Sprintf(`. "$FILE"
				curl() { command curl "$@"; case $* in *renew*) echo "spare $((end - sent - most))" >&2 ;; esac; }
				sleep() { command sleep "$@"; : "${first:=$renew}"; [ $((end - first - step)) -gt 1 ] || echo "no other one"; }
				with_lease x %d sh -c 'exec sleep 60'`, ttl)
			env := []string{"LEASEHOLD_URL=" + web.URL, "FILE=" + folder(t, "clients/sh/with_lease.sh")}
			out, code := run(t, env, t.TempDir(), shell, "-c", looks)
			if code != 76 || regexp.MustCompile(`spare (0|-)|no other one`).MatchString(out) {
				t.Errorf("exit code %d, %s", code, out)
			}
		})
	}
}

// A shell's section renews also under a command that has become another user's, and takes no signal of this one.
func TestCopyRenewsUnderAnotherUser(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"dash", "bash"} {
		var renewals atomic.Int64
		f := &fake{ttl: 7 * time.Second, proxy: "away"}
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/renew" {
				renewals.Add(1)
			}
			f.ServeHTTP(w, r)
		}))
		t.Cleanup(web.Close)
		env := []string{"LEASEHOLD_URL=" + web.URL, "FILE=" + folder(t, "clients/sh/with_lease.sh")}
		out, code := run(t, env, t.TempDir(), shell, "-c", `. "$FILE"; kill() { return 1; }; with_lease x 7 sleep 8`)
		if code != 76 || renewals.Load() == 0 {
			t.Errorf("%s: exit code %d, %d renewals, %s", shell, code, renewals.Load(), out)
		}
	}
}

// A renewal that a proxy answers, with what looks like a number of base 8, is one without an answer.
func TestCopiesEndBehindAProxy(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"php", "dash", "bash"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			web := httptest.NewServer(&fake{ttl: 5 * time.Second, proxy: "09:41 upstream timed out"})
			t.Cleanup(web.Close)
			goes := filepath.Join(t.TempDir(), "goes")
			code, _ := copied(t, shell, web.URL, phpUse, `echo $$ >`+goes+`; exec sleep 60`)
			if code != 76 {
				t.Errorf("exit code %d, want 76", code)
			}
			if shell == "php" {
				return
			}
			text, err := os.ReadFile(goes)
			section, bad := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil || bad != nil {
				t.Fatal(err, bad)
			}
			ends(t, section)
		})
	}
}

// Keys such as Ctrl-C and Ctrl-Z signal the whole process group. They neither end nor stop the guard of a shell, which ends
// the command at its deadline. This holds under "set -e", too, although the signal ends the sleep that the guard waits for.
func TestCopyOutlivesASignal(t *testing.T) {
	t.Parallel()
	for i := range 6 {
		shell, sig := []string{"dash", "bash"}[i/3], []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP}[i%3]
		t.Run(fmt.Sprint(shell, ", ", sig), func(t *testing.T) {
			t.Parallel()
			web := httptest.NewServer(&fake{ttl: 5 * time.Second})
			t.Cleanup(web.Close)
			// Each sleep ends as by the signal, and each kill finds nobody any more, but the one that only looks.
			cmd := exec.Command(shell, write(t, t.TempDir(), "a", `set -e
				trap : INT QUIT
				. "$FILE"
				sleep() { command sleep "$@"; return 130; }
				kill() { echo looks; command kill "$@" && [ "$1" = -0 ]; }
				with_lease x 20 sh -c 'trap "" TERM; echo held $$; while :; do sleep 0.05; done'`))
			cmd.Env = append(os.Environ(), "LEASEHOLD_URL="+web.URL, "FILE="+folder(t, "clients/sh/with_lease.sh"))
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			section, looks := 0, false
			for lines := bufio.NewScanner(out); section == 0 || !looks; {
				if !lines.Scan() {
					t.Fatal("it ends before the signal")
				}
				looks = looks || lines.Text() == "looks"
				_, _ = fmt.Sscanf(lines.Text(), "held %d", &section) // of the command
			}
			if err := syscall.Kill(-cmd.Process.Pid, sig); err != nil {
				t.Fatal(err)
			}
			ends(t, section)
			_ = cmd.Process.Signal(syscall.SIGCONT) // to the shell around the guard, if it was stopped
			_ = cmd.Wait()                          // its code is asked for below
			if code := cmd.ProcessState.ExitCode(); code != 76 {
				t.Errorf("exit code %d, want 76", code)
			}
		})
	}
}

// A signal ends a shell's section that is about to begin, whether its command has no process group yet or the lease is not
// even granted.
func TestCopyIsEndedAsItBegins(t *testing.T) {
	t.Parallel()
	for name, hook := range map[string]string{
		"no group": `setsid() { exec sleep 200; }; sleep() { sh -c 'command kill -TERM $PPID'; command sleep "$@"; }`,
		"no grant": `curl() { command curl "$@"; case $* in *acquire*) kill -TERM "$(exec sh -c 'cut -d" " -f4 "/proc/$(cut -d" " -f4 /proc/$PPID/stat)/stat"')" ;; esac; }`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{ttl: 20 * time.Second}
			web := httptest.NewServer(f)
			t.Cleanup(web.Close)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			t.Cleanup(cancel)
			ran := filepath.Join(t.TempDir(), "ran")
			cmd := exec.CommandContext(ctx, "sh", write(t, t.TempDir(), "a", `. "$FILE"
				`+hook+`
				with_lease x 20 touch "$RAN"`))
			cmd.Env = append(os.Environ(), "LEASEHOLD_URL="+web.URL, "FILE="+folder(t, "clients/sh/with_lease.sh"), "RAN="+ran)
			cmd.WaitDelay = time.Second
			out, _ := cmd.CombinedOutput() // its code is asked for below
			if code := cmd.ProcessState.ExitCode(); code != 143 {
				t.Errorf("exit code %d, want 143; %s", code, out)
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("the command ran")
			}
			if !f.released.Load() {
				t.Error("the lease was not released")
			}
		})
	}
}

// A lease that is over when its answer comes begins no section, and is released.
func TestCopyBeginsNothingTooLate(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"dash", "bash"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			f := &fake{ttl: 3 * time.Second, late: 3 * time.Second}
			web := httptest.NewServer(f)
			t.Cleanup(web.Close)
			ran := filepath.Join(t.TempDir(), "ran")
			if code, _ := copied(t, shell, web.URL, "", "echo >"+ran); code != 76 {
				t.Errorf("exit code %d, want 76", code)
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("the command ran")
			}
			if !f.released.Load() {
				t.Error("the lease was not released")
			}
		})
	}
}

const phpSteps = `
require getenv('FILE');
$lease = new Lease(getenv('LEASEHOLD_URL'), getenv('NAME'), ttl: 20);
passthru(getenv('COMMAND'));
try {
    $lease->release();
} catch (RuntimeException $e) {
    exit($e->getCode() === 410 ? 76 : 1);
}
`

// A lease that is lost in the last step, after the last renewal, is lost: each file to copy says so.
func TestCopiesTellALossAtTheirEnd(t *testing.T) {
	t.Parallel()
	server := serve(t, "memory:")
	for _, shell := range []string{"php", "dash", "bash"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			evict := fmt.Sprintf(`owner=$(curl -s '%s/v1/lock?name=%s' | sed 's/.*"handle":"\([^"]*\)".*/\1/')
				curl -s --json "{\"name\":\"%[2]s\",\"owner\":\"$owner\",\"reason\":\"test\"}" %[1]s/v1/evict`, server.url, shell)
			if code, _ := copied(t, shell, server.url, phpSteps, evict); code != 76 {
				t.Errorf("exit code %d, want 76", code)
			}
			if code, _ := copied(t, shell, server.url, phpSteps, "true"); code != 0 {
				t.Errorf("exit code %d of a lease that was held", code)
			}
		})
	}
}

// A lease that may be lost at the end, because nothing answers its release after the deadline, is no success.
func TestCopiesTellAnUnknownEnd(t *testing.T) {
	t.Parallel()
	// As if the machine slept between a look at the deadline and the next at the command, which ends meanwhile.
	sleeps := `kill() { while [ "$1" = -0 ] && command kill "$@" 2>/dev/null; do sleep 0.1; done; command kill "$@"; }`
	for _, shell := range []string{"php", "dash", "bash"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			grants := func(ttl time.Duration) (url string) {
				web := httptest.NewServer(&fake{ttl: ttl, cut: true})
				t.Cleanup(web.Close)
				return web.URL
			}
			if code, _ := copied(t, shell, grants(5*time.Second), phpSteps, "sleep 6", sleeps); code != 76 {
				t.Errorf("exit code %d after 6 of 5 s, want 76", code)
			}
			if code, _ := copied(t, shell, grants(time.Hour), phpSteps, "true"); code != 0 {
				t.Errorf("exit code %d before the deadline", code)
			}
		})
	}
}

// redis starts a store that the instances share.
func redis(t *testing.T) (url string) {
	return "redis://" + servers.StartRedis(t).Addr() + "/0"
}
