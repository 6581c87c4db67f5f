package badday

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// trace begins the passwords here, and is found in no other test's. What follows needs
// escapes in a URL.
const (
	trace           = "kept-s3cret-"
	more, moreInURL = "@/?#", "%40%2F%3F%23"
)

// password is that of a scheme's store.
func password(scheme string) string { return trace + scheme + more }

// A passwordStore is one that user may use with its password.
type passwordStore struct {
	scheme, user, rest string
	resumes            bool
	trusts             bool // whoever it is
}

func (s passwordStore) url(info, option string) string {
	if option != "" {
		option = "?" + option
	}
	return s.scheme + "://" + info + s.rest + option
}

// look prints all that a command can see of the processes around it: its own environment,
// the guardian's, and every command line.
const look = `env; tr '\0' '\n' </proc/$PPID/environ; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' '; echo LOOKED`

func TestPasswordOfRedis(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	r.Must(t, "ACL", "SETUSER", "locker", "on", ">"+password("redis"), "~*", "&*", "+@all")
	r.Must(t, "ACL", "SETUSER", "default", "off")
	leaksNone(t, passwordStore{"redis", "locker", r.Addr() + "/0", true, false})
}

func TestPasswordOfEtcd(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdDebian, "--bcrypt-cost=4") // each command logs in, and seconds are for calls
	for _, args := range [][]string{
		{"user", "add", "root:r"}, {"role", "add", "root"}, {"user", "grant-role", "root", "root"},
		{"user", "add", "locker:" + password("etcd")}, {"role", "add", "locker"}, {"user", "grant-role", "locker", "locker"},
		{"role", "grant-permission", "--prefix", "locker", "readwrite", "leasehold/"}, {"auth", "enable"},
	} {
		e.Etcdctl(t, args...)
	}
	leaksNone(t, passwordStore{"etcd", "locker", e.Addr(), true, false})
}

func TestPasswordOfZooKeeper(t *testing.T) {
	t.Parallel()
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{})
	conn, _, err := zk.Connect([]string{z.Addr()}, 10*time.Second, zk.WithLogger(silent{}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Create("/app", nil, 0, zk.DigestACL(zk.PermAll, "locker", password("zookeeper"))); err != nil {
		t.Fatal(err)
	}
	leaksNone(t, passwordStore{"zookeeper", "locker", z.Addr() + "/app", false, true})
}

func TestPasswordOfPostgres(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	p.Must(t, "CREATE ROLE locker SUPERUSER LOGIN PASSWORD '"+password("postgres")+"'")
	leaksNone(t, passwordStore{"postgres", "locker", p.Addr() + "/postgres", true, true})
}

func TestPasswordOfMySQL(t *testing.T) {
	t.Parallel()
	m := servers.StartMariaDB(t)
	m.Must(t, "CREATE USER locker IDENTIFIED BY '"+password("mysql")+"'", "GRANT ALL ON locks.* TO locker")
	leaksNone(t, passwordStore{"mysql", "locker", m.Addr() + "/locks", true, false})
}

// leaksNone gives the password in each way and looks for it in all outputs, in the environment
// of what the command starts, and in the list of processes.
func leaksNone(t *testing.T, s passwordStore) {
	dir := t.TempDir()
	file := filepath.Join(dir, "password")
	if err := os.WriteFile(file, []byte(password(s.scheme)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for way, env := range map[string][]string{
		"url":      {"LEASEHOLD_STORE=" + s.url(s.user+":"+trace+s.scheme+moreInURL+"@", "")},
		"variable": {"LEASEHOLD_STORE=" + s.url(s.user+"@", ""), "LEASEHOLD_PASSWORD=" + password(s.scheme)},
		"file":     {"LEASEHOLD_STORE=" + s.url(s.user+"@", "password_file="+file)},
	} {
		t.Run(way, func(t *testing.T) {
			if way != "url" && s.scheme != "redis" {
				servers.Long(t, "each store is asked with a URL, Redis in each way")
			}
			c := call{t, binary, dir, trace + s.scheme, env}
			c.everything(s, way)
		})
	}
	t.Run("wrong", func(t *testing.T) {
		c := call{t, binary, dir, trace + s.scheme, []string{"LEASEHOLD_STORE=" + s.url(s.user+":"+trace+s.scheme+"@", "")}}
		for _, args := range [][]string{{"run", "x", "--", "touch", "ran"}, {"acquire", "-v", "x"}, {"--json", "ls"}, {"show", "x"}} {
			if code, out := c.run(args...); code == 0 && !s.trusts {
				t.Errorf("%q: no error: %s", args, out)
			}
		}
	})
}

// A call is of the command with an environment.
type call struct {
	t           *testing.T
	binary, dir string
	trace       string // of its password
	env         []string
}

// run looks for the password in what the command prints, and returns it.
func (c call) run(args ...string) (code int, output string) {
	c.t.Helper()
	cmd := c.command(args...)
	out, _ := cmd.CombinedOutput() // its code tells
	if strings.Contains(string(out), c.trace) {
		c.t.Errorf("%q tells the password:\n%s", args, out)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func (c call) command(args ...string) *exec.Cmd {
	cmd := exec.Command(c.binary, args...)
	cmd.Dir, cmd.Env = c.dir, append(os.Environ(), c.env...)
	return cmd
}

func (c call) must(args ...string) string {
	c.t.Helper()
	code, out := c.run(args...)
	if code != 0 {
		c.t.Fatalf("%q: exit code %d: %s", args, code, out)
	}
	return out
}

func (c call) everything(s passwordStore, way string) {
	if out := c.must("run", "-v", "job", "-c", look); !strings.Contains(out, "LOOKED") || !strings.Contains(out, "LEASEHOLD_STORE="+s.scheme+"://locker@") {
		c.t.Errorf("the command saw %s", out)
	}
	c.leads()
	for _, args := range [][]string{{"ls"}, {"ls", "-v", "--json"}, {"show", "job"}, {"top"}, {"__complete", "show", ""}} {
		c.must(args...)
	}
	if s.resumes {
		c.must("acquire", "-w", "60", "-v", "script/"+way)
		c.run("renew", "script/"+way, "nobody")
		c.run("release", "script/"+way, "nobody")
	}
	c.run("evict", "--owner", "x", "--reason", "x", "-y", "job")
	c.demo()
	// What runs inside finds the password where COMMAND may read it, and only there.
	code, out := c.run("run", "outer", "--", c.binary, "run", "inner", "--", "true")
	if inside := code == 0; inside != (way == "file") && !s.trusts {
		c.t.Errorf("a run inside a run: exit code %d: %s", code, out)
	}
}

// leads lets a leader look, and ends it.
func (c call) leads() {
	cmd := c.command("lead", "-v", "leader", "-c", "("+look+`) >leader; kill -TERM $(awk '{print $4}' /proc/$PPID/stat); sleep 60`)
	out, _ := cmd.CombinedOutput()
	seen, err := os.ReadFile(filepath.Join(c.dir, "leader"))
	if err != nil || !bytes.Contains(seen, []byte("LOOKED")) || bytes.Contains(append(seen, out...), []byte(c.trace)) {
		c.t.Errorf("a leader: %v, %s\nsees %s", err, out, seen)
	}
}

// demo looks into the environment of the processes of a scenario while it is played.
func (c call) demo() {
	cmd := c.command("demo", "seckill", "--buyers", "60", "--processes", "3")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	done, seen := make(chan error, 1), 0
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case err := <-done:
			if err != nil || seen == 0 || strings.Contains(out.String(), c.trace) {
				c.t.Errorf("a demo: %v, %d looks: %s", err, seen, &out)
			}
			return
		case <-time.After(5 * time.Millisecond): // they live for a second or so
			seen += c.workers(cmd.Process.Pid)
		}
	}
}

// workers looks at the children of a process once, and returns how many it saw.
func (c call) workers(parent int) (seen int) {
	var children []byte
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	for _, path := range threads {
		pids, _ := os.ReadFile(path) // it may have ended
		children = append(children, pids...)
	}
	for pid := range strings.FieldsSeq(string(children)) {
		line, err1 := os.ReadFile("/proc/" + pid + "/cmdline")
		environ, err2 := os.ReadFile("/proc/" + pid + "/environ")
		if err1 != nil || err2 != nil || !bytes.Contains(line, []byte("demo\x00process")) { // or is not yet ours
			continue
		}
		seen++
		if bytes.Contains(append(environ, line...), []byte(c.trace)) {
			c.t.Fatalf("a process of a demo has the password")
		}
	}
	return seen
}
