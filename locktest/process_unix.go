//go:build unix

package locktest

import (
	"os"
	"syscall"
)

// stopProcess halts p where it stands; it does not notice until it is resumed.
func stopProcess(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func resumeProcess(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
