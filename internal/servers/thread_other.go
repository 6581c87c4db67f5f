//go:build unix && !linux

package servers

import (
	"os/exec"
	"syscall"
)

// mortal returns no attributes: here, a process outlives a parent that is killed.
func mortal() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func startOnLastingThread(cmd *exec.Cmd, then func() error) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	return then()
}
