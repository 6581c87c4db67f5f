package servers

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// mortal returns the attributes of a process that the system kills when the thread that started it
// ends.
func mortal() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// startOnLastingThread starts cmd from a thread that lives as long as the program, because Go may
// end other threads at any time, and a mortal process with them. It calls then on that thread.
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
