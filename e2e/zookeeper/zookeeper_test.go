package zookeeper

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/e2e/program"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// TestCommand uses the real command by URL.
func TestCommand(t *testing.T) {
	t.Parallel()
	binary := program.Build(t)
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{})
	store := "zookeeper://" + z.Addr() + "?prefix=%2Fshop"
	leasehold := func(code int, args ...string) (stdout, stderr string) {
		t.Helper()
		cmd := exec.Command(binary, append([]string{"--store", store}, args...)...)
		var out, failed bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &failed
		_ = cmd.Run() // its code tells
		if got := cmd.ProcessState.ExitCode(); got != code {
			t.Fatalf("%q: exit code %d, want %d: %s%s", args, got, code, &out, &failed)
		}
		return out.String(), failed.String()
	}
	inside := "'" + binary + "' ls --json; '" + binary + "' run -n backup -- true; echo busy=$?; '" + binary + "' run -n --ttl 3s other -- echo beside"
	out, _ := leasehold(7, "run", "--ttl", "5s", "--note", "nightly", "backup", "-c", inside+"; exit 7")
	for _, want := range []string{`"backup"`, "nightly", "busy=", "beside"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in %s", want, out)
		}
	}
	if strings.Contains(out, "busy=0") {
		t.Errorf("held twice: %s", out)
	}
	if _, failed := leasehold(64, "acquire", "backup"); !strings.Contains(failed, "leasehold run") {
		t.Errorf("acquire: %s", failed)
	}
	if out, _ := leasehold(0, "ls"); strings.Contains(out, "backup") {
		t.Errorf("left over: %s", out)
	}
}
