//go:build !linux

package main

import "syscall"

// demoProcess is how a process of a scenario is started: in a group of its own, so that Ctrl-C
// reaches only the demo, which ends the others.
func demoProcess() *syscall.SysProcAttr { return ownGroup() }
