package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/demo"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/polyglot"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/serve"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

const polyglotLong = `A program in Go, one in Python and one in shell, with curl, sell the same stock, which
is a number in a file. First they use no lock; then each takes a lock from one
"leasehold serve". Exit codes: 1 a run that promises to be right went wrong, 69 python3
or curl is missing.

# Processes and stores
The demo starts the service on a free port of this machine, over a temporary file or the
store that --store or LEASEHOLD_STORE names. It cleans up after itself; only the store
remembers the last tokens.`

// newPolyglotCommand returns a scenario whose processes are written in several languages.
func newPolyglotCommand(a *app) *cobra.Command {
	var stock int
	cmd := &cobra.Command{
		Use:     "polyglot [flags]",
		Short:   "Go, Python and shell sell the same stock through one server",
		Long:    polyglotLong,
		Example: "  leasehold demo polyglot\n  leasehold --store redis://host/0 demo polyglot --stock 100",
		Args:    argNames(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if stock < 3 || stock > 100_000 {
				return usageErrorf("--stock %d: want 3 to 100000\nSee: leasehold demo polyglot --help", stock)
			}
			if err := polyglot.Missing(); err != nil {
				return &exitError{exitUnavailable, err}
			}
			return a.onStage(cmd.Context(), func(ctx context.Context, st *demo.Stage) (demoOutcome, error) {
				return a.polyglot(ctx, st, stock)
			})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().IntVar(&stock, "stock", 30, "`N` pieces to sell")
	return cmd
}

// newSellerCommand returns the seller that is written in Go.
func newSellerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "seller",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE:   func(cmd *cobra.Command, args []string) error { return polyglot.Sell(cmd.Context(), args[0], args[1]) },
	}
}

// polyglot sells without a lock, then under one.
func (a *app) polyglot(ctx context.Context, st *demo.Stage, stock int) (*polyglot.Report, error) {
	d, err := a.openURL(ctx, stores.Open, setting{value: st.Store})
	if err != nil {
		return nil, err
	}
	defer a.close(d)
	locks, err := leasehold.New(d, nil)
	if err != nil {
		return nil, internalErrorf("%w", err)
	}
	defer locks.Close()
	url, end, err := demoService(d)
	if err != nil {
		return nil, err
	}
	defer end()
	self, err := os.Executable()
	if err != nil {
		return nil, internalErrorf("find the program to start the seller in Go: %w", err)
	}
	report := &polyglot.Report{Scenario: "polyglot", Runs: make(map[string]*polyglot.Result)}
	for name, at := range map[string]string{polyglot.Without: "", polyglot.Under: url} {
		sale := &polyglot.Sale{URL: at, Stock: stock, Go: []string{self, "demo", "seller"}, Process: demoProcess()}
		if name == polyglot.Under && st.Features.Fair {
			sale.Close = func(ctx context.Context) (func(int) error, error) { return polyglot.Closed(ctx, locks) }
		}
		if report.Runs[name], err = sale.Run(ctx); err != nil {
			return nil, internalErrorf("%w", err)
		}
	}
	return report, nil
}

// demoService serves d until end is called.
func demoService(d driver.Driver) (url string, end func(), err error) {
	handler, err := serve.New(d, nil)
	if err != nil {
		return "", nil, internalErrorf("%w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, errors.Join(internalErrorf("%w", err), handler.Close())
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headersWithin}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // until Close
	}()
	return "http://" + l.Addr().String(), func() {
		handler.Drain()
		server.Close()
		<-served
		handler.Close()
	}, nil
}
