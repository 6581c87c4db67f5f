//go:build unix

package main

import (
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A period holds the flags of "leasehold run" for jobs that must not run too often.
type period struct {
	atLeast span
	oncePer span
	atMost  span
	key     string
	retry   bool
}

func (p *period) addFlags(flags *pflag.FlagSet) {
	flags.Var(&p.atLeast, "at-least", "keep NAME held for at least `TIME` after the grant")
	flags.Var(&p.oncePer, "once-per", "run COMMAND once per `PERIOD`, such as 24h")
	flags.Var(&p.atMost, "at-most", "end COMMAND within `TIME` (default 9/10 of PERIOD)")
	flags.BoolVar(&p.retry, "retry-on-failure", false, "let a COMMAND that failed run again within PERIOD")
	flags.StringVar(&p.key, "key", "", "lock `NAME`; the arguments are then only COMMAND")
}

// ttl returns the longest time that the lease may last without a renewal, and the flag that sets
// it.
func (p *period) ttl(ttl span) (flag string, _ time.Duration) {
	switch {
	case p.atMost > 0:
		return "--at-most", time.Duration(p.atMost)
	case p.oncePer > 0:
		return "--once-per", time.Duration(p.oncePer)
	}
	return "--ttl", time.Duration(ttl)
}

func (r *run) checkPeriod(cmd *cobra.Command) error {
	p, claim := &r.period, &r.claim
	once, most := cmd.Flags().Changed("once-per"), cmd.Flags().Changed("at-most")
	switch {
	case once && p.oncePer == 0:
		return usageErrorf("--once-per 0: a period needs a length, such as 24h")
	case most && p.atMost == 0:
		return usageErrorf("--at-most 0: a bound needs a length, such as 1h")
	case most && !once:
		return usageErrorf("--at-most needs --once-per\nWithout a period, the lease is renewed as long as COMMAND runs")
	case p.retry && !once:
		return usageErrorf("--retry-on-failure needs --once-per")
	case once && cmd.Flags().Changed("ttl"):
		return usageErrorf("--once-per and --ttl exclude each other: --at-most is how long the lease lasts")
	case once && (claim.shared || claim.shares.flag() != ""):
		return usageErrorf("--once-per excludes --shared, --slots, --limit and --weight: only one may run")
	case once && cmd.Flags().Changed("also"):
		return usageErrorf("--once-per and --also exclude each other: %s would be kept for the whole period, too\nHold it inside: %s",
			shown(r.also[0]), shellLine(append([]string{"leasehold", "run", "--once-per", p.oncePer.String(), r.name, "--", "leasehold", "run", r.also[0], "--"}, r.argv...)...))
	case once && r.yieldFlag() != "":
		return usageErrorf("--once-per and %s exclude each other: nobody waits for the end of a period", r.yieldFlag())
	case once && cmd.Flags().Changed("at-least"):
		return usageErrorf("--once-per and --at-least exclude each other")
	}
	return nil
}

func (p *period) options() (opts []leasehold.Option) {
	if p.atLeast > 0 {
		opts = append(opts, leasehold.AtLeast(time.Duration(p.atLeast)))
	}
	if p.oncePer > 0 {
		opts = append(opts, leasehold.OncePer(time.Duration(p.oncePer)))
	}
	if p.atMost > 0 {
		opts = append(opts, leasehold.TTL(time.Duration(p.atMost)))
	}
	return opts
}

// keeps reports whether NAME is kept for a while after the command has ended.
func (p *period) keeps() bool { return p.length() > 0 }

// length returns how long NAME is kept, from the grant.
func (p *period) length() time.Duration { return time.Duration(p.atLeast + p.oncePer - p.oncePer/10) }

// insists reports whether the release decides more than when a lease ends: whether the command may
// run again too soon or, if it has failed, whether it may run again within the period.
func (p *period) insists(failed bool) bool {
	if p.oncePer > 0 {
		return p.atMost > 0 || p.retry && failed
	}
	return p.atLeast > 0
}
