package main

import "testing"

// Advice is a command line that works as it stands: with the lock's name, and the store of --store.
func TestAdviceNamesTheLock(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.acquire("a lock's name")
	c.acquire("deploy")
	contains(t, c.want(1, "acquire", "-n", "deploy").stderr, "See who holds it: leasehold show deploy\n", "--wait TIME")
	contains(t, c.want(1, "acquire", "-n", "a lock's name").stderr, `leasehold show 'a lock'\''s name'`+"\n")
	contains(t, c.want(1, "wait", "-w", "0.1", "deploy").stderr, "leasehold show deploy\n")
	contains(t, c.want(64, "evict", "deploy").stderr, "leasehold show deploy\n")
	contains(t, c.want(75, "evict", "deploy", "--owner", "x", "--reason", "y", "--yes").stderr, "leasehold show deploy\n")
	store := c.store
	c.store = ""
	contains(t, c.want(1, "--store", store, "acquire", "-n", "deploy").stderr, "leasehold --store "+store+" show deploy\n")
	contains(t, c.want(64, "run", "--once-per", "24h", "--also", "b", "a", "--", "echo", "$x").stderr,
		"leasehold run --once-per 24h0m0s a -- leasehold run b -- echo '$x'\n")
}
