package servers

import (
	"os/exec"
	"runtime"
	"sync"
)

// startOnLastingThread starts cmd from a thread that lives as long as the program:
// Pdeathsig follows the thread, and Go ends threads when it likes.
func startOnLastingThread(cmd *exec.Cmd) error {
	starter.Do(func() {
		go func() {
			runtime.LockOSThread()
			for s := range starts {
				s.err <- s.cmd.Start()
			}
		}()
	})
	s := toStart{cmd, make(chan error, 1)}
	starts <- s
	return <-s.err
}

type toStart struct {
	cmd *exec.Cmd
	err chan error
}

var (
	starter sync.Once
	starts  = make(chan toStart)
)
