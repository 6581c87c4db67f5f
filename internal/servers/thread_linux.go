package servers

import (
	"os/exec"
	"runtime"
	"sync"
)

// startOnLastingThread starts cmd from a thread that lives as long as the program:
// Pdeathsig follows the thread, and Go ends threads when it likes. then is called by that thread.
func startOnLastingThread(cmd *exec.Cmd, then func() error) error {
	starter.Do(func() {
		go func() {
			runtime.LockOSThread()
			for s := range starts {
				err := s.cmd.Start()
				if err == nil {
					err = s.then()
				}
				s.err <- err
			}
		}()
	})
	s := toStart{cmd, then, make(chan error, 1)}
	starts <- s
	return <-s.err
}

type toStart struct {
	cmd  *exec.Cmd
	then func() error
	err  chan error
}

var (
	starter sync.Once
	starts  = make(chan toStart)
)
