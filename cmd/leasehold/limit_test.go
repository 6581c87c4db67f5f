//go:build linux

package main

import (
	"strings"
	"testing"
)

// The commands show how much of a limit is used, in words and in JSON, even if it is more than a
// lowered limit allows.
func TestLimitsAndWeights(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.acquire("--limit", "8", "--weight", "3", "gpu")
	c.acquire("--limit", "8", "--weight", "2", "gpu")
	c.want(1, "acquire", "-n", "--limit", "8", "--weight", "4", "gpu")
	contains(t, c.want(0, "show", "gpu").stdout, "gpu is held, 5 of 8 used (weights 3, 2)\n", "shared/8, weight 3", "shared/8, weight 2")
	contains(t, c.want(0, "ls").stdout, "gpu   5 of 8  ")
	contains(t, c.want(64, "acquire", "-n", "--limit", "8", "--weight", "9", "gpu").stderr, "heavier than the limit", "--weight")

	contains(t, c.want(0, "limit", "gpu").stdout, "gpu has no limit\n")
	contains(t, c.want(0, "limit", "gpu", "4").stdout, "gpu has a limit of 4\n")
	contains(t, c.want(0, "limit", "--json", "gpu").stdout, `"limit": 4`)
	contains(t, c.want(0, "show", "gpu").stdout, "gpu is held, 5 of 4 used (weights 3, 2)\n", "A limit of 4 is set\n")
	c.want(1, "acquire", "-n", "--limit", "8", "gpu")
	c.want(64, "acquire", "-n", "--limit", "8", "--weight", "5", "gpu")
	if v := c.shown("gpu"); v.Limit != 4 || v.Used != 5 || len(v.Holders) != 2 || v.Holders[0].Weight != 3 {
		t.Errorf("shown: %+v", v)
	}
	c.obeys("show", c.want(0, "show", "--json", "gpu").stdout, false)
	c.obeys("limit", c.want(0, "limit", "--json", "gpu").stdout, false)
	contains(t, c.want(0, "limit", "gpu", "--clear").stdout, "gpu has no limit\n")
	c.want(0, "acquire", "-n", "--limit", "8", "gpu")
	c.want(0, "limit", "idle", "3")
	contains(t, c.want(0, "show", "idle").stdout, "idle is free\nA limit of 3 is set\n")
}

// run takes limits of several names, all or nothing.
func TestLimitsOfSeveralNames(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.acquire("--limit", "2", "tenant/7")
	both := []string{"run", "-n", "--limit", "tenant/7=2", "--limit", "total=100", "--weight", "total=99", "--"}
	o := c.want(0, append(both, "sh", "-c", `echo $LEASEHOLD_NAME; leasehold show total; leasehold run -n --limit a=1 --limit total=100 -- true; echo $?`)...)
	contains(t, o.stdout, "tenant/7\ntotal is held, 99 of 100 used (weights 99)\n", "\n64\n")
	c.acquire("--limit", "2", "tenant/7")
	c.want(1, append(both, "true")...)
	contains(t, c.want(0, "show", "total").stdout, "total is free")
	// A NAME of its own, and one that is alone.
	o = c.want(0, "run", "-n", "--limit", "total=100", "--weight", "total=7", "job", "--", "leasehold", "ls")
	contains(t, o.stdout, "job ", "exclusive", "7 of 100", "shared/100, weight 7")
	for _, line := range []string{"--limit 0 x", "--limit x", "--limit =3 x", "--limit x=0 x", "--limit 1 --limit 2 x", "--limit a=1 --limit a=2 x", "--weight 1.5 x", "--weight x=y x",
		"--limit 1 --slots 1 x", "-x --limit 1 x", "-x --weight 1 x", "--once-per 1h --limit 2 x", "--weight 3 --limit 2 x"} {
		contains(t, c.want(64, append([]string{"run"}, append(strings.Fields(line), "--", "true")...)...).stderr, "leasehold: ")
	}
	contains(t, c.want(64, "acquire", "--limit", "y=2", "x").stderr, "leasehold run")
}

// A limit is of one name.
func TestLimitRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	contains(t, c.want(64, "limit", "tenant/*", "2").stderr, "one lock", "--literal")
	contains(t, c.want(64, "limit", "tenant/*").stderr, "--literal")
	for _, line := range []string{"", "x 0", "x -- -1", "x 1.5", "x 2147483648", "x 3 --clear", "x 3 4"} {
		c.want(64, append([]string{"limit"}, strings.Fields(line)...)...)
	}
	c.missing("locks.db")
	contains(t, c.want(0, "limit", "--literal", "tenant/*", "2").stdout, "tenant/* has a limit of 2")
}

// The commands distinguish a kept lock from one in use, and show the preferences of candidates.
func TestKeptAndPreferred(t *testing.T) {
	t.Parallel()
	v := stateView{Name: "x", Holders: []holderView{{Owner: "a", Mode: "exclusive", Details: detailsView{Kind: "keeps"}}},
		Waiters: []waiterView{{Owner: "b", Mode: "exclusive", Details: detailsView{Preference: -3}}}}
	var b strings.Builder
	writeState(&b, v)
	writeTable(&b, []stateView{v}, 0)
	contains(t, b.String(), "x is held, or kept after use by its process until others wait\n", "b  preference -3\n", "x     keeps  ")
	c := newCLI(t)
	c.candidate("a", "--preference", "7")
	c.terms(1)
	c.waits(c.candidate("b", "--preference", "5"))
	eventually(t, "the preferences", func() bool {
		v := c.shown("sched")
		return v.Holders[0].Details.Preference == 7 && len(v.Waiters) == 1 && v.Waiters[0].Details.Preference == 5
	})
	contains(t, c.want(0, "show", "sched").stdout, "preference 7\n", "preference 5\n")
}
