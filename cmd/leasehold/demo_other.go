//go:build !linux

package main

import "syscall"

// demoProcess starts a process of a scenario in a group of its own. So Ctrl-C reaches only the
// demo, which ends the others.
func demoProcess() *syscall.SysProcAttr { return ownGroup() }
