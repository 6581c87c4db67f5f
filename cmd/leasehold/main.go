// Command leasehold holds distributed locks for shell scripts, cron jobs and people who
// want to see who holds what.
package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

func main() {
	inherit() // if this process is the guardian of a run that was killed
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: newConsole(os.Stderr)}
	err := execute(a, os.Args[1:])
	a.flush(consoleBound)
	endBySignal(err)
	os.Exit(exitCode(err))
}

// execute runs one command line and prints its error.
func execute(a *app, args []string) error {
	cobra.EnableCommandSorting = false // the help text has its own order
	cmd := newRootCommand(a)
	cmd.SetArgs(args)
	ran, err := cmd.ExecuteC()
	a.report(err)
	a.failEval(ran, err)
	return err
}

// report prints err, unless it is silent, and advice.
func (a *app) report(err error) {
	if err == nil || err.Error() == "" {
		return
	}
	v := errorView{Error: textOf(err), Advice: a.advice(err), Code: exitCode(err)}
	if a.verbose {
		v.Time, v.Kind = stamp(), onError
	}
	if a.json {
		a.encode(v)
	} else {
		a.write(v.Error + "\n" + v.Advice)
	}
}

// errorView is an error in the output of --json. With -v it is one of many events.
type errorView struct {
	Time   string `json:"time,omitempty" about:"only with -v"`
	Kind   string `json:"event,omitempty" enum:"error" about:"only with -v"`
	Error  string `json:"error" about:"text for people to read"`
	Advice string `json:"advice,omitempty" about:"what to do, for people to read"`
	Code   int    `json:"exit_code"`
}

const about = `Run one thing at a time, across processes and machines. A lock is a lease: it
ends by itself if its holder dies. Its fencing token is larger than any before.`

const passwords = `# Passwords
The password of a store may be in the file that ?password_file=PATH names, in
LEASEHOLD_PASSWORD, or in the URL. Everyone on this machine can read a URL that is given
by --store in the list of processes. Programs that leasehold starts get the URL without
the password, and no LEASEHOLD_PASSWORD: a leasehold inside them needs the file.`

const examples = `  leasehold run --store redis://host/0 backup -- ./backup.sh`

func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:               "leasehold",
		Short:             "Run one thing at a time, across processes and machines",
		Long:              about + "\n\n# Stores\n" + describeStores() + "\n" + configHelp + "\n\n" + passwords,
		Example:           examples,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		Args:              cobra.ArbitraryArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return checkFilled(cmd) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.version {
				return printVersion(a)
			}
			return onlySubcommands(cmd, args)
		},
	}
	// cobra's version flag needs a template, with which the linker can no longer drop unused code.
	root.Flags().BoolVar(&a.version, "version", false, "print the version")
	_ = root.Flags().MarkHidden("version") // because there is a command version
	flags := root.PersistentFlags()
	flags.String(keyStore, "", "the store: sqlite:PATH or another `URL` (default "+defaultStore+")")
	flags.Bool(keyShared, false, "refuse a store that is a file of this machine")
	a.flags = flags
	flags.BoolVar(&a.json, "json", false, "print JSON")
	flags.BoolVarP(&a.verbose, "verbose", "v", false, "log what happens to standard error")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageErrorf("%w\nSee: %s --help", inOurWords(err), cmd.CommandPath())
	})

	root.AddGroup(
		&cobra.Group{ID: groupHold, Title: "Hold a lock:"},
		&cobra.Group{ID: groupLook, Title: "Inspect and repair:"},
		&cobra.Group{ID: groupRest, Title: "More:"},
	)
	add(a, root, groupHold, newRunCommand(a), newLeadCommand(a), newAcquireCommand(a), newRenewCommand(a), newReleaseCommand(a), newReserveCommand(a))
	add(a, root, groupLook, newListCommand(a), newShowCommand(a), newWaitCommand(a), newTopCommand(a), newEvictCommand(a), newResetCommand(a), newLimitCommand(a), newHistoryCommand(a), newDoctorCommand(a))
	add(a, root, groupRest, newServeCommand(a), newDemoCommand(a), newVersionCommand(a), newSchemaCommand(a), newManCommand(a))
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(cmd, false) })
	root.SetHelpCommand(newHelpCommand())
	root.SetHelpCommandGroupID(groupRest)
	root.SetCompletionCommandGroupID(groupRest)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	completion, _, _ := root.Find([]string{"completion"})
	completion.Args, completion.RunE = cobra.ArbitraryArgs, onlySubcommands // cobra's prints help for an unknown shell
	completion.Short = "Write a script that completes commands in a shell"
	return root
}

// describeStores returns a line for each kind of store, with its form and a description.
func describeStores() string {
	var b strings.Builder
	for _, s := range stores.Schemes() {
		fmt.Fprintf(&b, "  %-28s %s\n", s.Form, s.About)
	}
	return b.String()
}

// Groups of commands in the help text.
const groupHold, groupLook, groupRest = "hold", "look", "rest"

// add adds commands to a group. Those about locks complete NAME, unless they say otherwise.
func add(a *app, root *cobra.Command, group string, cmds ...*cobra.Command) {
	for _, c := range cmds {
		c.GroupID = group
		if c.ValidArgsFunction == nil && group != groupRest {
			c.ValidArgsFunction = completeName(a, cobra.ShellCompDirectiveNoFileComp)
		}
	}
	root.AddCommand(cmds...)
}

// newHelpCommand returns a command like cobra's. In addition it has --full, and treats an unknown
// COMMAND as wrong usage.
func newHelpCommand() *cobra.Command {
	full := false
	help := &cobra.Command{
		Use:               "help [COMMAND]",
		Short:             "Explain a command",
		ValidArgsFunction: completeCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			switch {
			case err != nil:
				return usageErrorf("%w", err)
			case len(rest) > 0:
				return onlySubcommands(about, rest)
			}
			printHelp(about, full)
			return nil
		},
	}
	help.Flags().BoolVar(&full, "full", false, "show all that the manual page has")
	return help
}

func printHelp(cmd *cobra.Command, full bool) {
	out := cmd.OutOrStdout()
	writeHelp(out, cmd, cmp.Or(widthOf(out), helpWidth), full)
}

func completeCommand(cmd *cobra.Command, args []string, typed string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	about, rest, err := cmd.Root().Find(args)
	if err != nil || len(rest) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, c := range about.Commands() {
		if c.IsAvailableCommand() && strings.HasPrefix(c.Name(), typed) {
			names = append(names, cobra.CompletionWithDesc(c.Name(), c.Short))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// onlySubcommands prints the help of a command that has only subcommands.
func onlySubcommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var hint strings.Builder
	cmd.SuggestionsMinimumDistance = 2 // number of edits
	for _, s := range cmd.SuggestionsFor(args[0]) {
		fmt.Fprintf(&hint, "\nDid you mean: %s %s", cmd.CommandPath(), s)
	}
	return usageErrorf("unknown command %q%s\nSee: %s --help", stray(args[0]), hint.String(), cmd.CommandPath())
}
