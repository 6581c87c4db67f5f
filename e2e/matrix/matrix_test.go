// Package matrix runs the tests of engines on several builds of their servers, and writes
// docs/versions.md, with the names of the tests in docs/versions.json.
package matrix

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/table"
)

var run = flag.Bool("matrix", false, "run the tests of engines on all builds, which takes an hour")

// A build is one of a server. Its version is the begin of it, as scripts/fetch-server takes
// it; "": the system's own.
type build struct{ server, version string }

var builds = []build{
	{"redis", ""}, {"redis", "8.0"}, {"valkey", "8.1"}, {"valkey", "9"},
	{"etcd", ""}, {"etcd", "3.5"},
	{"zookeeper", ""}, {"zookeeper", "3.9"},
	{"postgres", ""}, {"postgres", "18"},
	{"mariadb", ""}, {"mariadb", "11.8"}, {"mysql", "9"},
}

func (b build) String() string { return strings.TrimSpace(b.server + " " + b.version) }

// An engine is how the server of one is asked who it is, and which tests it is to pass: the
// conformance suite, the histories, and those beside other clients.
type engine struct {
	name    string   // for servers.Variable
	folders []string // of its tests, seen from this one
	tests   string   // a pattern
	version func(t *testing.T) string
}

var engines = map[string]engine{
	"redis":     {"redis", []string{"../../engine/redislock", "../redis", "../linear"}, redisTests, redisVersion},
	"valkey":    {"redis", []string{"../../engine/redislock", "../redis", "../linear"}, redisTests, redisVersion},
	"etcd":      {"etcd", []string{"../../engine/etcdlock", "../linear"}, "^Test(Conformance|Flush|LeaderFails|EtcdIsLinearizable|ExcludesOtherClients|ForeignHolder|Namespace)$", etcdVersion},
	"zookeeper": {"zookeeper", []string{"../../engine/zklock", "../linear"}, "^Test(Conformance|ConformanceOfThree|Links|ZooKeeperIsLinearizable|OtherClients)$", zookeeperVersion},
	"postgres":  {"postgres", []string{"../postgres"}, "^TestPostgres|^TestOnce|^TestPgBouncerConformance$", postgresVersion},
	"mariadb":   {"mariadb", []string{"../mysql"}, mysqlTests + "/^MariaDB$", func(t *testing.T) string { return mysqlVersion(t, servers.StartMariaDB(t)) }},
	"mysql":     {"mysql", []string{"../mysql"}, mysqlTests + "/^MySQL$", func(t *testing.T) string { return mysqlVersion(t, servers.StartMySQL(t)) }},
}

const (
	redisTests = "Conformance$|^TestRed[a-z]+IsLinearizable$|HistoryUnderFaults$|Excludes|Foreign|UncontendedCycle|Identify$|ACLRule$|ScriptFlush$|Once|Late|Eviction"
	mysqlTests = "^(TestMySQL|TestOnceOnMySQL)"
)

func redisVersion(t *testing.T) string {
	info := servers.StartRedis(t).Must(t, "INFO", "server")
	if v := field(info, "valkey_version:"); v != "" {
		return "Valkey " + v
	}
	return "Redis " + field(info, "redis_version:")
}

func etcdVersion(t *testing.T) string {
	status := servers.StartEtcd(t, servers.EtcdDebian).Etcdctl(t, "endpoint", "status") // address, id, version, …
	return "etcd " + strings.Split(status+", , ", ", ")[2]
}

func zookeeperVersion(t *testing.T) string {
	text, err := servers.StartZooKeeper(t, servers.ZooKeeperOptions{}).Ask("srvr")
	if err != nil {
		t.Fatal(err)
	}
	version, _, _ := strings.Cut(field(text, "Zookeeper version:"), ",")
	return "ZooKeeper " + version
}

func postgresVersion(t *testing.T) string {
	return "PostgreSQL " + servers.StartPostgres(t).Must(t, "SHOW server_version")
}

func mysqlVersion(t *testing.T, m *servers.MySQL) string {
	version := m.Must(t, "SELECT VERSION()")
	if strings.Contains(version, "MariaDB") {
		return version
	}
	return "MySQL " + version
}

// field is what follows name on its line of text.
func field(text, name string) string {
	_, rest, _ := strings.Cut(text, name)
	rest, _, _ = strings.Cut(rest, "\n")
	return strings.TrimSpace(rest)
}

func TestMatrix(t *testing.T) {
	if !*run {
		t.Skip("make matrix runs it")
	}
	for _, b := range builds {
		t.Run(b.String(), func(t *testing.T) {
			e := engines[b.server]
			if b.version != "" {
				t.Setenv(servers.Variable(e.name), servers.Fetch(t, b.server, b.version))
			}
			r := e.test(t, e.version(t))
			r.log(t)
			write(t, b, r)
		})
	}
}

// A result is what came of the tests on one build.
type result struct {
	version                 string
	ran                     []string // tests that have no part of another
	passed, skipped, failed []string // the same, and parts
	output                  string
}

// test runs the tests of e on the build that the environment names.
func (e engine) test(t *testing.T, version string) result {
	r := result{version: version}
	args := append([]string{"test", "-json", "-count=1", "-timeout", "30m", "-run", e.tests}, e.folders...)
	tests := exec.CommandContext(t.Context(), "go", args...)
	tests.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := tests.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("run the tests: %v", err)
	}
	for events := json.NewDecoder(bytes.NewReader(out)); events.More(); {
		var one struct{ Action, Test, Output string }
		if err := events.Decode(&one); err != nil {
			t.Fatalf("read what the tests said: %v", err)
		}
		r.add(one.Action, one.Test, one.Output)
	}
	if err != nil && len(r.failed) == 0 || len(r.passed) == 0 {
		t.Fatalf("%s: %v\n%s", version, err, r.output)
	}
	return r
}

func (r *result) add(action, test, output string) {
	r.output += output
	if test == "" {
		return // of the package
	}
	switch action {
	case "run":
		if !strings.Contains(test, "/") {
			r.ran = append(r.ran, test)
		}
	case "pass":
		r.passed = append(r.passed, test)
	case "skip":
		r.skipped = append(r.skipped, test)
	case "fail":
		r.failed = append(r.failed, test)
	}
}

func (r result) log(t *testing.T) {
	t.Helper()
	t.Logf("%s: %d passed, %d skipped, %d failed", r.version, len(r.passed), len(r.skipped), len(r.failed))
	for _, test := range r.skipped {
		t.Logf("skipped: %s", test)
	}
	if len(r.failed) > 0 {
		t.Errorf("failed: %s\n%s", strings.Join(r.failed, " "), r.output)
	}
}

const page, part, file = "../../docs/versions.md", "versions: written by e2e/matrix", "../../docs/versions.json"

// A row is what came of the tests on one build, as it is kept beside the page.
type row struct {
	Server  string   `json:"server"`
	Version string   `json:"version"` // "": the system's own
	Itself  string   `json:"calls_itself"`
	Tests   []string `json:"tests"`
	Passed  int      `json:"passed"` // of the tests and their parts
	Skipped int      `json:"skipped"`
	Failed  []string `json:"failed,omitempty"`
	On      string   `json:"on"`
}

// write keeps the row of b, in place of that of before, and writes all of them into the page.
func write(t *testing.T, b build, r result) {
	t.Helper()
	rows, err := table.Keep(file, row{
		b.server, b.version, r.version, r.ran, len(r.passed), len(r.skipped), r.failed, time.Now().UTC().Format(time.DateOnly),
	}, func(r row) string { return r.Server + " " + r.Version })
	if err == nil {
		err = table.Write(page, part, lines(rows))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// lines is a table with a line for each build.
func lines(rows []row) string {
	text := &strings.Builder{}
	text.WriteString("| asked for | it calls itself | tests | passed | skipped | failed | on |\n|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(text, "| %s, %s | %s | %d | %d | %d | %d | %s |\n", r.Server, cmp.Or(r.Version, "of the system"), r.Itself,
			len(r.Tests), r.Passed, r.Skipped, len(r.Failed), r.On)
	}
	return text.String()
}

var update = flag.Bool("update", false, "write docs/versions.md from the rows beside it")

// The page has the lines of the rows that were kept.
func TestPageHasTheRows(t *testing.T) {
	rows, err := table.Rows[row](file)
	if err != nil || len(rows) == 0 {
		t.Fatal(rows, err)
	}
	table.Check(t, page, part, lines(rows), *update)
}
