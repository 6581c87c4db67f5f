//go:build unix

package demo

import (
	"fmt"
	"syscall"
	"time"
)

// stopFor stops the process. It resumes it when d has passed and enough is closed, and then sends
// it a line.
func (p *process) stopFor(d time.Duration, enough <-chan struct{}, then string) error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop a process: %w", err)
	}
	time.AfterFunc(d, func() {
		<-enough
		_ = p.cmd.Process.Signal(syscall.SIGCONT) // an error means that the process has ended
		p.tell(then)
	})
	return nil
}
