package main

import "syscall"

// demoProcess is how a process of a scenario is started: in a group of its own, so that Ctrl-C
// reaches only the demo, which ends the others. The kernel kills it when the demo is killed, also
// one that was stopped.
func demoProcess() *syscall.SysProcAttr {
	attr := ownGroup()
	attr.Pdeathsig = syscall.SIGKILL
	return attr
}
