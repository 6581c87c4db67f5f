//go:build unix

package guardian

import (
	"fmt"
	"syscall"
)

// Exit codes of a command that could not be started, as a shell has them.
const (
	CodeNotExecutable = 126
	CodeNotFound      = 127
)

// startChild starts the program at path as argv, with the streams of this process and the
// environment env, and returns its pid. code is what a shell would exit with after err.
func startChild(path string, argv, env []string, t *terminal) (pid, code int, err error) {
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
	if err == nil {
		return pid, 0, nil
	}
	code = CodeNotExecutable
	if err == syscall.ENOENT {
		code = CodeNotFound
	}
	return 0, code, fmt.Errorf("%q: %w", argv[0], err)
}
