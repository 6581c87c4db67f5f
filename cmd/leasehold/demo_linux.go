package main

import "syscall"

// demoProcess starts a process of a scenario in a group of its own. So Ctrl-C reaches only the
// demo, which ends the others. If the demo is killed, the kernel kills the process, even a stopped
// one.
func demoProcess() *syscall.SysProcAttr {
	attr := ownGroup()
	attr.Pdeathsig = syscall.SIGKILL
	return attr
}
