// Package clients runs the clients of other languages, and the recipes of docs/clients.md,
// against real instances of "leasehold serve" over Redis.
package clients

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
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
	for dir, command := range map[string][]string{
		"clients/python": {"/usr/bin/python3", "-B", "-m", "unittest"},
		"clients/node":   {"node", "--test", "leasehold.test.mjs"},
	} {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			env := append(recorded(t), "LEASEHOLD_STORE="+redis(t))
			if out, code := run(t, env, folder(t, dir), command[0], command[1:]...); code != 0 {
				t.Errorf("%s", out)
			}
		})
	}
}

// blocks are the fenced blocks of docs/clients.md in one language.
func blocks(t *testing.T, language string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(folder(t, "docs/clients.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		all = append(all, found[1])
	}
	if len(all) == 0 {
		t.Fatalf("no recipe in %s", language)
	}
	return all
}

func write(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// recipes are the page's, each as a file and the command that runs it at url.
func recipes(t *testing.T, url string) map[string]func() (out string, code int) {
	env := []string{"LEASEHOLD_URL=" + url, "PYTHONPATH=" + folder(t, "clients/python")}
	here := func(text string) string { return strings.ReplaceAll(text, "http://127.0.0.1:7400", url) }
	python, node := write(t, "a.py", here(blocks(t, "python")[0])), blocks(t, "js")[0]
	module := strings.ReplaceAll(here(node), "./leasehold.mjs", folder(t, "clients/node/leasehold.mjs"))
	php, sh := write(t, "a.php", strings.Join(blocks(t, "php"), "\n")), write(t, "a.sh", strings.Join(blocks(t, "sh"), "\n"))
	script := write(t, "a.mjs", module)
	all := map[string]func() (string, int){
		"python": func() (string, int) { return run(t, env, "", "/usr/bin/python3", "-B", python) },
		"node":   func() (string, int) { return run(t, env, "", "node", script) },
		"php":    func() (string, int) { return run(t, env, "", "php", php) },
	}
	for _, shell := range []string{"dash", "bash"} {
		all[shell] = func() (string, int) { return run(t, env, "", shell, sh) }
	}
	return all
}

// The page's recipes run one after the other, so that each shows that the one before released.
func TestRecipesRun(t *testing.T) {
	t.Parallel()
	server := serve(t, redis(t))
	want := map[string]string{"python": "holds nightly-report with token", "node": "with token", "php": "step 3 with token", "dash": "it is mine", "bash": "it is mine"}
	for name, recipe := range recipes(t, server.url) {
		if out, code := recipe(); code != 0 || !strings.Contains(out, want[name]) {
			t.Errorf("%s: exit code %d, %s", name, code, out)
		}
	}
	if left := ask(t, "GET", server.url+"/v1/locks", ""); strings.Contains(left, "nightly-report") {
		t.Errorf("left: %s", left)
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

const phpUse = `
$lease = new Lease(getenv('LEASEHOLD_URL'), getenv('NAME'), ttl: 6);
echo "held\n";
try {
    for (;;) {
        $lease->check();
        usleep(50_000);
    }
} catch (RuntimeException $e) {
    echo 'over ', $e->getCode(), "\n";
    exit($e->getCode() === 410 ? 76 : 1);
}
`

// A server that hangs: each recipe ends its section before the engine gives the lease on.
func TestRecipesEndBeforeAnotherHolds(t *testing.T) {
	t.Parallel()
	store := redis(t)
	other := serve(t, store)
	for _, shell := range []string{"php", "dash", "bash"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			hung, name := serve(t, store), "hung/"+shell
			script := write(t, "a", strings.Join(blocks(t, "sh")[:1], "\n")+fmt.Sprintf("\nwith_lease %s 6 sh -c 'echo held $$; while :; do sleep 0.05; done'\n", name))
			if shell == "php" {
				script = write(t, "a.php", blocks(t, "php")[0]+phpUse)
			}
			cmd := exec.Command(shell, script)
			cmd.Env = append(os.Environ(), "LEASEHOLD_URL="+hung.url, "NAME="+name)
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			var section int // its process, where it is one of its own
			line, err := bufio.NewReader(out).ReadString('\n')
			if _, _ = fmt.Sscanf(line, "held %d", &section); !strings.HasPrefix(line, "held") {
				t.Fatalf("%q, %v", line, err)
			}
			ended := make(chan time.Time, 1)
			go func() {
				_ = cmd.Wait() // its code is asked for below
				ended <- time.Now()
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

// redis starts a store that the instances share.
func redis(t *testing.T) (url string) {
	return "redis://" + servers.StartRedis(t).Addr() + "/0"
}
