//go:build unix

package demo

import (
	"fmt"
	"syscall"
	"time"
)

// stopFor stops the process, lets it go on after d and then sends it a line.
func (p *process) stopFor(d time.Duration, then string) error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop a process: %w", err)
	}
	time.AfterFunc(d, func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT) // an error means that it has ended
		p.tell(then)
	})
	return nil
}
