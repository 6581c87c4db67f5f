package servers

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// mortal are the attributes of a process that the system kills when the thread ends that has started it.
func mortal() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// startOnLastingThread starts cmd from a thread that lives as long as the program:
// the death of a mortal process follows the thread, and Go ends threads when it likes. then is called by that thread.
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
