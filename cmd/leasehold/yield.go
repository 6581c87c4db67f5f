//go:build unix

package main

import (
	"strings"
	"sync"
	"syscall"

	"github.com/leasehold-go/leasehold"
	"golang.org/x/sys/unix"
)

// yieldNames are the most common signals for --yield.
var yieldNames = []string{"USR1", "USR2", "TERM", "INT", "HUP"}

// yieldFlag returns the flag that needs to know whether others wait, or "".
func (r *run) yieldFlag() string {
	switch {
	case r.yieldName != "":
		return "--yield"
	case r.hooks.wanted != "":
		return "--on-wanted"
	}
	return ""
}

// checkYield parses the signal of --yield.
func (r *run) checkYield() error {
	if r.yieldName == "" {
		return nil
	}
	sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(r.yieldName), "SIG"))
	if sig == 0 || sig == syscall.SIGKILL || sig == syscall.SIGSTOP {
		return usageErrorf("--yield %q: want the name of a signal that COMMAND can catch, such as USR1", plain(r.yieldName))
	}
	r.yield = sig
	return nil
}

// listen returns a channel that closes when others wait for one of leases. At that time it also
// runs --on-wanted with env. After stop it does neither.
func (c *child) listen(env []string, leases []*leasehold.Lease) (_ <-chan struct{}, stop func()) {
	wanted, stopped := make(chan struct{}), make(chan struct{})
	var first sync.Once
	var listening sync.WaitGroup
	for _, lease := range leases {
		if lease.Wanted() == nil {
			continue
		}
		listening.Go(func() {
			select {
			case <-lease.Wanted():
				first.Do(func() {
					c.app.detail(onWanted, lease.Name(), lease.Token(), "others wait for %s", shown(lease.Name()))
					c.hooks.start(c.app, "--on-wanted", c.hooks.wanted, env, "LEASEHOLD_WANTED="+lease.Name())
					close(wanted)
				})
			case <-stopped:
			}
		})
	}
	return wanted, func() {
		close(stopped)
		listening.Wait()
	}
}

// tellYield reports whether the command received the signal of --yield.
func (c *child) tellYield(got bool) {
	if got {
		c.app.detail(onWanted, c.name, 0, "the command got %s", unix.SignalName(c.yield))
		return
	}
	c.app.tell(onWarning, c.name, 0, "warning: others wait for %s, but the command does not catch %s yet: it gets it once it does",
		shown(c.name), unix.SignalName(c.yield))
}
