package contest

import (
	"os/exec"
	"testing"
)

func TestProcessorsArePinned(t *testing.T) {
	all := allowed(t)
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	undo := Pin(t, cmd.Process.Pid, true)
	if now := allowed(t); now != all.least() {
		t.Errorf("this process may use %x of %x", now, all)
	}
	undo()
	if now := allowed(t); now != all {
		t.Errorf("this process may use %x of %x afterwards", now, all)
	}
}

func TestProcessorsAreKeptAwake(t *testing.T) { KeepAwake(t)() }
