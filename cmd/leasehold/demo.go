package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/seckill"
	"github.com/spf13/cobra"
)

// newDemoCommand is the parent of the scenarios: each is one function here.
func newDemoCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "demo",
		Short:   "See on an example what a lock is for",
		Example: "  leasehold demo seckill",
		Args:    cobra.ArbitraryArgs,
		RunE:    onlySubcommands,
	}
	cmd.AddCommand(newSeckillCommand(a), newSeckillBuyersCommand(a))
	return cmd
}

func newSeckillCommand(a *app) *cobra.Command {
	var sale seckill.Sale
	cmd := &cobra.Command{
		Use:   "seckill [flags]",
		Short: "A flash sale, without a lock and with one",
		Long: `Hold a flash sale twice, with real processes and a real database: many buyers want few
pieces. Each reads the stock, thinks for a moment and writes it back, as a naive shop
does. Without a lock the shop sells what it does not have; under the lock it sells
exactly its stock, and each write shows the fencing token of its lease.

The lock is kept in a temporary file, or in the store of --store or LEASEHOLD_STORE. The
shop's database is temporary. Nothing is left behind.

Exit code 1: the sale under the lock went wrong.`,
		Example:           "  leasehold demo seckill\n  leasehold demo seckill --buyers 200 --stock 20 --processes 8\n  leasehold demo seckill --json | jq .locked",
		Args:              argNames(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := sale.Check(); err != nil {
				return usageErrorf("%w\nSee: leasehold demo seckill --help", err)
			}
			return demoSeckill(cmd.Context(), a, sale)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&sale.Buyers, "buyers", 30, "how `MANY` want a piece")
	flags.IntVar(&sale.Stock, "stock", 5, "how `MANY` pieces there are")
	flags.IntVar(&sale.Processes, "processes", 3, "how `MANY` processes the buyers are spread over")
	return cmd
}

// newSeckillBuyersCommand is what the demo starts as its processes.
func newSeckillBuyersCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "seckill-buyers",
		Hidden: true,
		Args:   argNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return seckill.Work(cmd.Context(), a.stdin, a.stdout)
		},
	}
}

// seckillResult is what the demo prints.
type seckillResult struct {
	Sale     seckill.Sale   `json:"sale"`
	Unlocked seckill.Result `json:"unlocked"`
	Locked   seckill.Result `json:"locked"`
}

func demoSeckill(ctx context.Context, a *app, sale seckill.Sale) (err error) {
	ctx, stop := interruptible(ctx)
	defer stop()
	dir, err := os.MkdirTemp("", "leasehold-seckill-")
	if err != nil {
		return internalErrorf("create a folder for the shop: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	store, err := a.demoStore(ctx, dir)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return internalErrorf("find the program to start the buyers: %w", err)
	}
	r := &seckill.Runner{Sale: sale, Dir: dir, Worker: func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, self, "demo", "seckill-buyers")
		// In a group of its own, Ctrl-C reaches only this process, which ends the others.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd
	}}
	res := seckillResult{Sale: sale}
	if res.Unlocked, err = runSeckill(ctx, a, r, "without a lock", ""); err != nil {
		return err
	}
	if res.Locked, err = runSeckill(ctx, a, r, "under the lock", store); err != nil {
		return err
	}
	if err := a.print(res, func(w io.Writer) { writeSeckill(w, res) }); err != nil {
		return err
	}
	if !sale.Right(res.Locked) {
		return &exitError{exitBusy, errors.New("the sale under the lock went wrong: please report it with the numbers above and the store")}
	}
	return nil
}

// demoStore is the chosen store, or one in dir when the user chose none.
func (a *app) demoStore(ctx context.Context, dir string) (string, error) {
	if a.storeURL == "" && os.Getenv("LEASEHOLD_STORE") == "" {
		a.storeURL = "sqlite:" + filepath.Join(dir, "locks.db")
	}
	// Opened once here, so that a wrong URL is told before anything starts.
	d, err := a.open(ctx)
	if err != nil {
		return "", err
	}
	return a.storeURL, d.Close()
}

// progressEvery keeps the progress line from costing more than the sale.
const progressEvery = 50 * time.Millisecond

// runSeckill holds one sale, with a progress line on a terminal.
func runSeckill(ctx context.Context, a *app, r *seckill.Runner, title, store string) (seckill.Result, error) {
	r.Progress = nil
	if _, ok := terminal(a.stderr); ok {
		var last time.Time
		r.Progress = func(served, sold int) {
			if now := time.Now(); served == r.Sale.Buyers || now.Sub(last) >= progressEvery {
				last = now
				fmt.Fprintf(a.stderr, "\r%s: %d of %d buyers served, %d sold\x1b[K", title, served, r.Sale.Buyers, sold)
			}
		}
		defer fmt.Fprint(a.stderr, "\r\x1b[K")
	}
	return r.Run(ctx, store)
}

func writeSeckill(w io.Writer, r seckillResult) {
	fmt.Fprintf(w, "%d buyers in %d processes, %d pieces\n\n", r.Sale.Buyers, r.Sale.Processes, r.Sale.Stock)
	t := newTable(w)
	fmt.Fprintln(t, "\tWITHOUT LOCK\tUNDER LOCK")
	count := func(name string, without, under int) { fmt.Fprintf(t, "%s\t%d\t%d\n", name, without, under) }
	span := func(name string, without, under float64) {
		fmt.Fprintf(t, "%s\t%.1f ms\t%.1f ms\n", name, without, under)
	}
	count("sold", r.Unlocked.Sold, r.Locked.Sold)
	count("left, says the shop", r.Unlocked.Left, r.Locked.Left)
	count("oversold", r.Unlocked.Oversold, r.Locked.Oversold)
	count("buyers turned away", r.Unlocked.TurnedAway, r.Locked.TurnedAway)
	span("wait p50", r.Unlocked.WaitP50, r.Locked.WaitP50)
	span("wait p99", r.Unlocked.WaitP99, r.Locked.WaitP99)
	span("total time", r.Unlocked.Total, r.Locked.Total)
	t.Flush()
}
