package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/demo"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/secret"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

func newDemoCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "demo",
		Short:   "Show what a lock is for, by example",
		Example: "  leasehold demo seckill",
		Args:    cobra.ArbitraryArgs,
		RunE:    onlySubcommands,
	}
	for _, s := range demo.Scenarios() {
		cmd.AddCommand(newScenarioCommand(a, s))
	}
	cmd.AddCommand(newPolyglotCommand(a), newSellerCommand(), newDemoProcessCommand(a))
	return cmd
}

const scenarioExit = "\n\nExit code 1 means that a run that promises to be right went wrong."

// scenarioNotes end each scenario's manual page.
const scenarioNotes = `

# Processes and stores
The demo uses real processes and a real database. The lock is in a temporary file, or in
the store that --store or LEASEHOLD_STORE names. The shop's books are in a temporary file,
or in a schema of their own in the database of --shop. The demo cleans up after itself; only
the store remembers the last tokens, for as long as it keeps them.`

// A demoCall is one run of a scenario, with its flags.
type demoCall struct {
	scenario demo.Scenario
	strategy string
	shop     string // URL; once the call has begun, resolved
}

func newScenarioCommand(a *app, s demo.Scenario) *cobra.Command {
	about, c := s.About(), &demoCall{scenario: s}
	brief, more, _ := strings.Cut(about.Long+scenarioNotes, "\n\n# ")
	var examples []string
	for _, args := range about.Examples {
		examples = append(examples, strings.TrimRight("  leasehold demo "+about.Name+" "+args, " "))
	}
	cmd := &cobra.Command{
		Use:               about.Name + " [flags]",
		Short:             about.Short,
		Long:              brief + scenarioExit + "\n\n# " + more,
		Example:           strings.Join(examples, "\n"),
		Args:              argNames(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.play(cmd.Context(), a)
		},
	}
	flags := cmd.Flags()
	s.AddFlags(flags)
	flags.StringVar(&c.strategy, "strategy", allStrategies, "run only `ONE` of "+strategyNames(s))
	flags.StringVar(&c.shop, "shop", "", "keep the books in the database of this `URL`: "+demo.ShopForms)
	return cmd
}

const allStrategies = "all"

func strategyNames(s demo.Scenario) string {
	names := ""
	for _, strategy := range s.About().Strategies {
		names += string(strategy) + ", "
	}
	return names + "or " + allStrategies
}

// newDemoProcessCommand returns the hidden command that scenarios start as their processes.
func newDemoProcessCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "process",
		Hidden: true,
		Args:   argNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return demo.Work(cmd.Context(), a.stdin, a.stdout)
		},
	}
}

// strategies returns the strategies that the user selected.
func (c *demoCall) strategies() ([]demo.Strategy, error) {
	all := c.scenario.About().Strategies
	if c.strategy == allStrategies {
		return all, nil
	}
	if one := demo.Strategy(c.strategy); slices.Contains(all, one) {
		return []demo.Strategy{one}, nil
	}
	return nil, fmt.Errorf("%w: no strategy %q, want %s", demo.ErrSettings, c.strategy, strategyNames(c.scenario))
}

func (c *demoCall) play(ctx context.Context, a *app) error {
	strategies, err := c.strategies()
	if err == nil {
		err = c.scenario.Check()
	}
	if err == nil && c.shop != "" {
		c.shop, err = stores.Resolve(c.shop) // the processes do not get the password of the environment
	}
	if err != nil {
		return c.wrong(err)
	}
	return a.onStage(ctx, func(ctx context.Context, st *demo.Stage) (_ demoOutcome, err error) {
		st.Shop = c.shop
		if st.Worker, err = demoProcesses(); err != nil {
			return nil, err
		}
		report, err := a.playOn(ctx, st, c.scenario, strategies)
		return report, c.wrong(err)
	})
}

// wrong returns err. If err is about the settings, it adds where they are described.
func (c *demoCall) wrong(err error) error {
	if errors.Is(err, demo.ErrSettings) || errors.Is(err, stores.ErrURL) {
		return usageErrorf("%w\nSee: leasehold demo %s --help", err, c.scenario.About().Name)
	}
	return err
}

type demoOutcome interface {
	Write(w io.Writer)
	Err() error // a strategy that should be correct was not
}

// onStage calls play with a temporary folder and the selected store, and prints play's report.
func (a *app) onStage(ctx context.Context, play func(ctx context.Context, st *demo.Stage) (demoOutcome, error)) (err error) {
	ctx, stop := interruptible(ctx)
	defer stop()
	dir, err := os.MkdirTemp("", "leasehold-demo-")
	if err != nil {
		return internalErrorf("create a folder for the demo: %w", err)
	}
	defer func() { err = errors.Join(orSignal(ctx, err), os.RemoveAll(dir)) }()
	st := &demo.Stage{Dir: dir}
	if err := a.demoStore(ctx, st); err != nil {
		return err
	}
	report, err := play(ctx, st)
	if err != nil {
		return err
	}
	if err := a.print(report, report.Write); err != nil {
		return err
	}
	if err := report.Err(); err != nil {
		return &exitError{exitBusy, err}
	}
	return nil
}

// demoStore opens the store that the flag or the environment names, or else one in the stage's
// folder. It ignores configuration files, because a store that they name is for real work.
func (a *app) demoStore(ctx context.Context, st *demo.Stage) error {
	chosen := setting{value: "sqlite:" + filepath.Join(st.Dir, "locks.db")}
	if _, ok := os.LookupEnv("LEASEHOLD_STORE"); ok || a.flags.Changed(keyStore) {
		var err error
		if chosen, err = a.chosenStore(); err != nil {
			return err
		}
	}
	// It is opened once here, so that a wrong URL is reported before anything starts.
	d, err := a.openURL(ctx, stores.Open, chosen)
	if err != nil {
		return err
	}
	st.Store, st.Features = a.storeURL, d.Features()
	return a.close(d)
}

// demoProcesses returns a function that starts this program as a process of a scenario.
func demoProcesses() (func(ctx context.Context) *exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, internalErrorf("find the program to start the processes: %w", err)
	}
	return func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, self, "demo", "process")
		cmd.Env = secret.Environ() // its order names the store and the books, with their passwords
		cmd.SysProcAttr = demoProcess()
		return cmd
	}, nil
}

// progressEvery is long enough that the progress line costs little.
const progressEvery = 50 * time.Millisecond

// playOn plays a scenario, with a progress line if standard error is a terminal.
func (a *app) playOn(ctx context.Context, st *demo.Stage, s demo.Scenario, strategies []demo.Strategy) (*demo.Report, error) {
	if _, ok := terminal(a.stderr); ok {
		var last time.Time
		st.Progress = func(text string) {
			if now := time.Now(); now.Sub(last) >= progressEvery {
				last = now
				fmt.Fprintf(a.stderr, "\r%s\x1b[K", text)
			}
		}
		defer fmt.Fprint(a.stderr, "\r\x1b[K")
	}
	return st.Play(ctx, s, strategies)
}
