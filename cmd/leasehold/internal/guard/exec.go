//go:build unix

package guard

import (
	"errors"
	"io/fs"
	"os/exec"
	"syscall"
)

// Exit codes of a command that could not be started, as a shell has them.
const (
	codeNotExecutable = 126
	codeNotFound      = 127
)

// startChild starts argv with the streams of this process and the environment env, and
// returns its pid. code is what a shell would exit with after err.
func startChild(argv, env []string, t *terminal) (pid, code int, err error) {
	path, err := exec.LookPath(argv[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return 0, exitCode(err), err
	}
	attr := &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2}, // higher ones are the user's and pass by themselves
		Sys:   childAttr(t),
	}
	pid, err = syscall.ForkExec(path, argv, attr)
	if err == syscall.ENOEXEC {
		// A script without a #! line: execvp(3) and every shell hand it to sh.
		pid, err = syscall.ForkExec("/bin/sh", append([]string{"sh", path}, argv[1:]...), attr)
	}
	if err != nil {
		return 0, exitCode(err), &exec.Error{Name: argv[0], Err: err}
	}
	return pid, 0, nil
}

func exitCode(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return codeNotFound
	}
	return codeNotExecutable
}
