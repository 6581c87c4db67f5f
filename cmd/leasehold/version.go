package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

type versionView struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

// packagedVersion and packagedFrom are set by the linker in scripts/dist.
var packagedVersion, packagedFrom string

// buildVersion returns what the linker recorded, or the release. Anything that neither says is
// "unknown".
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
	if info.Main.Sum != "" && releasedFrom != "" { // built from a release in a module proxy
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
