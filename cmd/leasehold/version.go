package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

type versionView struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

// packagedVersion and packagedFrom are what scripts/dist has the linker put into packages.
var packagedVersion, packagedFrom string

// buildVersion is what the linker recorded, or the release; what neither says is "unknown".
func buildVersion() versionView {
	if packagedVersion != "" {
		return versionView{packagedVersion, packagedFrom, runtime.Version()}
	}
	v := versionView{"unknown", "unknown", runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	if info.Main.Sum != "" && releasedFrom != "" { // built from a module proxy's copy of a release
		v.Commit = releasedFrom
	}
	modified := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if modified {
		v.Commit += "+modified"
	}
	return v
}

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Print the version",
		Args:              argNames(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(*cobra.Command, []string) error { return printVersion(a) },
	}
}

func printVersion(a *app) error {
	v := buildVersion()
	return a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "leasehold %s\ncommit %s\n%s\n", v.Version, v.Commit, v.Go)
	})
}

func newManCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write the manual pages into a folder",
		Long:    "Write a manual page for each command into DIR, which is created if it is missing.",
		Example: "  leasehold man ~/.local/share/man/man1\n  man leasehold-run",
		Args:    argNames("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeManual(a, cmd.Root(), args[0])
		},
	}
}

func writeManual(a *app, root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return internalErrorf("create the manual's folder: %w", err)
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	header := doc.GenManHeader{Title: "LEASEHOLD", Section: "1", Source: "leasehold " + buildVersion().Version, Manual: "Leasehold"}
	if err := doc.GenManTree(root, &header, dir); err != nil {
		return internalErrorf("write the manual: %w", err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "leasehold*.1"))
	if err != nil {
		return err
	}
	return a.print(pages, func(w io.Writer) { fmt.Fprintf(w, "wrote %d pages to %s\n", len(pages), dir) })
}
