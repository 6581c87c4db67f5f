//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/spf13/pflag"
)

// hookBound limits how long a hook may take.
const hookBound = 10 * time.Second

// hooks are commands that notify people of events of a run's leases. They run in parallel to the
// run. Only the end of this program waits for them.
type hooks struct {
	acquire, lost, wanted string
	running               sync.WaitGroup
}

func (h *hooks) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&h.acquire, "on-acquire", "", "run `STRING` with the shell when NAME is held")
	flags.StringVar(&h.lost, "on-lost", "", "run `STRING` with the shell after the lease was lost")
	flags.StringVar(&h.wanted, "on-wanted", "", "run `STRING` with the shell when others wait for NAME")
}

// start runs text with env and more variables, unless it is "".
func (h *hooks) start(a *app, flag, text string, env []string, more ...string) {
	if text == "" {
		return
	}
	env = append(env[:len(env):len(env)], more...)
	h.running.Go(func() { // in the background: without free memory, starting a process may take long
		if err := runHook(a, text, env); err != nil {
			a.tell(onWarning, "", 0, "warning: %s has failed: %v", flag, err)
		}
	})
}

// dyingHook is longer than a killed hook takes to die, even on a very busy machine. One that has
// become another user cannot be killed.
const dyingHook = 5 * time.Second

// dyingPoll is the pause between two looks at a hook that was killed.
const dyingPoll = 20 * time.Millisecond

// groupRuns reports whether the process group of a killed hook still has a process, after Run has
// waited for the first one. Orphans of the group become children of this process, which reaps them.
func groupRuns(group int) bool {
	for {
		pid, err := syscall.Wait4(-group, nil, syscall.WNOHANG, nil)
		if pid <= 0 && err != syscall.EINTR {
			return syscall.Kill(-group, 0) != syscall.ESRCH
		}
	}
}

// runHook runs text within hookBound. Its output goes to standard error, and its standard input is
// empty.
func runHook(a *app, text string, env []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), hookBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, shell(), "-c", text)
	cmd.Env, cmd.SysProcAttr = env, ownGroup() // signals of the terminal do not reach the group
	if c, ok := a.stderr.(*console); ok {
		cmd.Stdout, cmd.Stderr = c.file, c.file
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	dying, over := context.WithTimeout(context.Background(), hookBound+dyingHook)
	defer over()
	_, err := abandon.Call(dying, func() (struct{}, error) {
		err := cmd.Run()
		for ctx.Err() != nil && cmd.Process != nil && groupRuns(cmd.Process.Pid) {
			if dying.Err() != nil {
				return struct{}{}, dying.Err()
			}
			time.Sleep(dyingPoll)
		}
		return struct{}{}, err
	})
	switch {
	case err == context.DeadlineExceeded && dying.Err() != nil:
		return fmt.Errorf("it cannot be killed, and still runs after %v", hookBound+dyingHook)
	case ctx.Err() != nil:
		return fmt.Errorf("killed after %v", hookBound)
	case errors.Is(err, syscall.ECHILD): // it was reaped with the processes of COMMAND
		return nil
	}
	return err
}
