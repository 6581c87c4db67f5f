//go:build unix

package guardian

import (
	"fmt"
	"syscall"
)

// Exit codes for a command that could not be started, as in shells.
const (
	CodeNotExecutable = 126
	CodeNotFound      = 127
)

// startChild starts the program at path with argv, env and the streams of this process. It returns
// its pid. After an error, code is the exit code of a shell.
func startChild(path string, argv, env []string, t *terminal) (pid, code int, err error) {
	attr := &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2}, // higher ones are the user's, and are inherited anyway
		Sys:   childAttr(t),
	}
	pid, err = syscall.ForkExec(path, argv, attr)
	if err == syscall.ENOEXEC {
		// A script without a #! line. Like execvp(3) and shells, run it with sh.
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
