//go:build !linux

package main

import "syscall"

// demoProcess is as on Linux, but leaves the processes of a demo that is killed.
func demoProcess() *syscall.SysProcAttr { return ownGroup() }
