package main

import (
	"errors"

	"github.com/spf13/pflag"
)

// flockNames maps flock's long names of flags to those of this program.
var flockNames = map[string]string{
	"nonblock": "no-wait", "nb": "no-wait", "timeout": "wait", "conflict-exit-code": "busy-exit-code",
}

// A refusal is a flag of flock that has no meaning here. Its text says what to use instead.
type refusal string

func (refusal) String() string     { return "" }
func (refusal) Type() string       { return "bool" }
func (r refusal) Set(string) error { return errors.New(string(r)) }
func (r refusal) add(set *pflag.FlagSet, name, letter string) {
	f := set.VarPF(r, name, letter, "")
	f.NoOptDefVal, f.Hidden = "true", true
}

// addFlock adds flock's other names of flags. It also adds flock's remaining flags, which are
// refused by name.
func addFlock(set *pflag.FlagSet, alone *bool) {
	set.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if ours, ok := flockNames[name]; ok {
			name = ours
		}
		return pflag.NormalizedName(name)
	})
	set.BoolVarP(alone, "e", "e", false, "")
	set.Lookup("e").Hidden = true
	refusal("a lock is given up by its name: leasehold release NAME; \"leasehold run\" does so itself").add(set, "unlock", "u")
	refusal("COMMAND gets no file of the lock, and what it leaves running is ended before the release\n"+
		"Start what is to stay on as a service of its own, such as with systemd-run").add(set, "close", "o")
	refusal("\"leasehold run\" stays beside COMMAND to renew the lease").add(set, "no-fork", "F")
}
