//go:build linux

package main

import (
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	batch "k8s.io/api/batch/v1"
	kubeyaml "sigs.k8s.io/yaml"
)

// recipeBlocks are the blocks of docs/recipes.md by what the comment before each says.
func recipeBlocks(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string]string{}
	for _, m := range regexp.MustCompile("(?ms)^<!-- (.*?) -->\n```[a-z]*\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		blocks[m[1]] = m[2]
	}
	if fences := strings.Count(string(page), "\n```") / 2; len(blocks) != fences {
		t.Fatalf("%d blocks with a comment, %d blocks", len(blocks), fences)
	}
	return blocks
}

// runRecipe runs a line of a shell with programs of a recipe that write "ran" in their place.
func (c *cli) runRecipe(line string) {
	c.t.Helper()
	c.runRecipeFor("ran\n", line)
}

// runRecipeFor runs one that is to print that.
func (c *cli) runRecipeFor(want, line string) {
	c.t.Helper()
	line = regexp.MustCompile(`/usr/bin/leasehold`).ReplaceAllString(line, "leasehold")
	line = strings.ReplaceAll(line, "--require-shared ", "") // the store of this test is a file
	line = regexp.MustCompile(`(/usr/local/bin/\w+|\./deploy\.sh)$`).ReplaceAllString(strings.TrimSpace(line), "echo ran")
	if o := c.exec("sh", "-c", line); o.code != 0 || o.stdout != want {
		c.t.Errorf("%s: exit code %d, %q, %q", line, o.code, o.stdout, o.stderr)
	}
}

// Each recipe is read by what reads it in earnest, as far as that is here, and its command is run.
func TestRecipes(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	blocks := recipeBlocks(t)
	checks := map[string]func(t *testing.T, text string){
		"crontab":                       c.checkCrontab,
		"unit leasehold-report.service": func(t *testing.T, text string) { c.checkUnits(t, blocks) },
		"unit leasehold-report.timer":   checkTimer, // and with the service
		"cronjob":                       c.checkCronJob,
		"dockerfile":                    checkDockerfile,
		"github":                        c.checkGitHub,
		"gitlab":                        c.checkGitLab,
	}
	for name, text := range blocks {
		check, ok := checks[name]
		if !ok {
			t.Errorf("nothing checks %q", name)
			continue
		}
		t.Run(name, func(t *testing.T) { check(t, text) })
	}
}

// checkPeriod checks that a job which was done again in the morning, after a failure, does not keep
// its name until the next night.
func checkPeriod(t *testing.T, line string) {
	t.Helper()
	m := regexp.MustCompile(`--once-per (\S+)`).FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("not once per period: %s", line)
	}
	if period, err := time.ParseDuration(m[1]); err != nil || period > 12*time.Hour {
		t.Errorf("a nightly job keeps its name for %s: %v", m[1], err)
	}
}

var crontabLine = regexp.MustCompile(`^(?:[-*/,0-9]+ +){5}(.*)$`)

func (c *cli) checkCrontab(t *testing.T, text string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "MAILTO=") {
			continue
		}
		m := crontabLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			t.Errorf("no line of a crontab: %q", line)
			continue
		}
		if strings.HasPrefix(line, "0 3 ") {
			checkPeriod(t, line)
		}
		c.runRecipe(m[1])
	}
}

// checkTimer checks that no machine makes up for a night that it has missed. It could do so at any
// time until the next night, and its run would keep the name for nine tenths of a period from then.
func checkTimer(t *testing.T, text string) {
	if !strings.Contains(text, "\nOnCalendar=*-*-* 03:00:00\n") {
		t.Errorf("the report is not written at three:\n%s", text)
	}
	if m := regexp.MustCompile(`(?mi)^Persistent=(1|yes|y|true|t|on)$`).FindString(text); m != "" {
		t.Errorf("%s: a machine that boots at 02:59 writes the report then, and nobody does at three", m)
	}
}

func (c *cli) checkUnits(t *testing.T, blocks map[string]string) {
	var files []string
	for name, text := range blocks {
		if unit, ok := strings.CutPrefix(name, "unit "); ok {
			// systemd looks whether the program is there.
			text = strings.ReplaceAll(text, "ExecStart=/usr/bin/leasehold", "ExecStart="+binary)
			file := filepath.Join(c.dir, unit)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
	}
	template, err := os.ReadFile("../../e2e/packages/leasehold-lead@.service")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(template), "ExecStart=/usr/bin/leasehold", "ExecStart="+binary)
	file := filepath.Join(c.dir, "leasehold-lead@x.service")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, start, _ := strings.Cut(blocks["unit leasehold-report.service"], "\nExecStart=")
	start, _, _ = strings.Cut(start, "\n")
	checkPeriod(t, start)
	machines := newCLI(t)
	machines.runRecipe(start)
	machines.runRecipeFor("", start) // of a machine whose timer fires later
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("no systemd-analyze: the units are not verified")
	}
	cmd := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, append(files, file)...)...)
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), c.dir) {
		t.Errorf("systemd-analyze: %v\n%s", err, out)
	}
}

func (c *cli) checkCronJob(t *testing.T, text string) {
	var job batch.CronJob
	if err := kubeyaml.UnmarshalStrict([]byte(text), &job); err != nil { // as the API server with strict validation
		t.Fatal(err)
	}
	pod := job.Spec.JobTemplate.Spec.Template.Spec
	if job.APIVersion != "batch/v1" || job.Kind != "CronJob" || len(pod.Containers) != 1 || len(pod.Volumes) != 1 {
		t.Fatalf("got %+v", job)
	}
	it := pod.Containers[0]
	if len(it.Env) != 1 || len(it.VolumeMounts) != 1 || it.VolumeMounts[0].Name != pod.Volumes[0].Name {
		t.Fatalf("got %+v", pod)
	}
	store, err := url.Parse(it.Env[0].Value)
	if err != nil || it.Env[0].Name != "LEASEHOLD_STORE" {
		t.Fatalf("%+v: %v", it.Env, err)
	}
	if file := store.Query().Get("password_file"); filepath.Dir(file) != it.VolumeMounts[0].MountPath {
		t.Errorf("the password is in %q, the secret in %q", file, it.VolumeMounts[0].MountPath)
	}
	grace, err := time.ParseDuration(it.Command[1+slices.Index(it.Command, "--grace")])
	// The command is only passed the signal: what it does then comes before --grace.
	const report = 30 * time.Second
	if ends := pod.TerminationGracePeriodSeconds; err != nil || ends == nil || report+grace > time.Duration(*ends)*time.Second {
		t.Errorf("%v for the command and %v of grace, the pod has %v s: %v", report, grace, ends, err)
	}
	c.runRecipe(strings.Join(it.Command, " "))
}

func checkDockerfile(t *testing.T, text string) {
	_, entry, _ := strings.Cut(text, "\nENTRYPOINT ")
	var args []string
	if err := json.Unmarshal([]byte(entry), &args); err != nil || args[0] != "/usr/bin/leasehold" {
		t.Errorf("the entry point %s: %v", entry, err)
	}
	if !slices.Contains(args, "--") {
		t.Errorf("%q has no command", args)
	}
}

func (c *cli) checkGitHub(t *testing.T, text string) {
	var flow struct {
		On   map[string]any
		Jobs map[string]struct {
			RunsOn string `yaml:"runs-on"`
			Steps  []struct{ Uses, Run string }
		}
	}
	if err := yaml.Unmarshal([]byte(text), &flow); err != nil {
		t.Fatal(err)
	}
	steps := flow.Jobs["deploy"].Steps
	if flow.On["push"] == nil || flow.Jobs["deploy"].RunsOn == "" || len(steps) != 2 {
		t.Fatalf("got %+v", flow)
	}
	c.runRecipe(steps[1].Run)
}

func (c *cli) checkGitLab(t *testing.T, text string) {
	var flow map[string]struct {
		Stage  string
		Script []string
	}
	if err := yaml.Unmarshal([]byte(text), &flow); err != nil {
		t.Fatal(err)
	}
	if len(flow["deploy"].Script) != 1 {
		t.Fatalf("got %+v", flow)
	}
	c.runRecipe(flow["deploy"].Script[0])
}

// As PID 1 of a container, leasehold waits for those whose parents have died, and passes signals on.
func TestEntryPointIsPID1(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	if o := c.exec("unshare", "--fork", "--pid", "--mount-proc", "true"); o.code != 0 {
		t.Skipf("no namespace of processes can be made: %s", o.stderr)
	}
	// The command leaves an orphan that ends, sees that it goes, and gets the signal for PID 1.
	script := `trap 'echo got TERM; exit 3' TERM
		sh -c 'sh -c "exit 0" & echo $! >orphan'
		read orphan <orphan
		while [ -e /proc/$orphan ]; do :; done
		echo reaped
		kill -TERM 1
		while :; do sleep 0.01; done`
	o := c.exec("unshare", "--fork", "--pid", "--mount-proc", binary, "run", "x", "--", "sh", "-c", script)
	if o.code != 3 || o.stdout != "reaped\ngot TERM\n" {
		t.Errorf("exit code %d, %q, %q", o.code, o.stdout, o.stderr)
	}
}

// PID 1 dies of no signal: its exit code says what ended the command.
func TestEntryPointSaysWhatEndedTheCommand(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	if o := c.exec("unshare", "--fork", "--pid", "--mount-proc", "true"); o.code != 0 {
		t.Skipf("no namespace of processes can be made: %s", o.stderr)
	}
	o := c.exec("unshare", "--fork", "--pid", "--mount-proc", binary, "run", "x", "--", "sh", "-c", "kill -INT $$; sleep 60")
	if o.code != 130 {
		t.Errorf("exit code %d, want 130: %q, %q", o.code, o.stdout, o.stderr)
	}
}
