//go:build unix

package demo

import (
	"fmt"
	"syscall"
	"time"
)

// stopFor stops the process, lets it go on after d when enough is closed, and then sends it
// a line.
func (p *process) stopFor(d time.Duration, enough <-chan struct{}, then string) error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop a process: %w", err)
	}
	time.AfterFunc(d, func() {
		<-enough
		_ = p.cmd.Process.Signal(syscall.SIGCONT) // an error means that it has ended
		p.tell(then)
	})
	return nil
}
