//go:build unix && !linux

package servers

import (
	"os/exec"
	"syscall"
)

// mortal: here a process outlives who has started it and was killed.
func mortal() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func startOnLastingThread(cmd *exec.Cmd, then func() error) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	return then()
}
