package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newManCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write the manual pages into a folder",
		Long:    "Write a manual page for each command into DIR, which is created if it is missing. A page has\nall that \"leasehold help COMMAND --full\" shows.",
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
	built, err := manualDate()
	if err != nil {
		return err
	}
	var pages []string
	for _, cmd := range documented(root) {
		file := filepath.Join(dir, pageName(cmd)+".1")
		if err := os.WriteFile(file, []byte(manualPage(cmd, built)), 0o666); err != nil {
			return internalErrorf("write the manual: %w", err)
		}
		pages = append(pages, file)
	}
	slices.Sort(pages)
	return a.print(pages, func(w io.Writer) { fmt.Fprintf(w, "wrote %d pages to %s\n", len(pages), dir) })
}

// manualDate returns the date of manual pages: SOURCE_DATE_EPOCH if it is set, so that the same
// source gives the same pages, or today.
func manualDate() (time.Time, error) {
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		return time.Now(), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, usageErrorf("SOURCE_DATE_EPOCH %q is no number of seconds", epoch)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// documented returns cmd and all commands below it that are for people.
func documented(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			all = append(all, documented(c)...)
		}
	}
	return all
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manualPage returns the page of a command in roff, as described in man(7). It does not use cobra's
// generator, which makes pages by way of Markdown. Markdown takes the _ of names for emphasis. The
// generator also adds a table of all HTML entities to the start of every command.
func manualPage(cmd *cobra.Command, built time.Time) string {
	var p strings.Builder
	fmt.Fprintf(&p, ".nh\n.TH %s 1 %q %q Leasehold\n", roff(strings.ToUpper(pageName(cmd))),
		built.Format(time.DateOnly), "leasehold "+buildVersion().Version)
	fmt.Fprintf(&p, ".SH NAME\n%s \\- %s\n", roff(pageName(cmd)), roff(cmd.Short))
	fmt.Fprintf(&p, ".SH SYNOPSIS\n%s\n", bold(cmd.UseLine()))
	cmd.InitDefaultHelpFlag()
	for i, part := range sections(cmd) {
		title := strings.ToUpper(part.title)
		if i == 0 {
			title = "DESCRIPTION"
		}
		fmt.Fprintf(&p, ".SH %s\n", roff(title))
		manualText(&p, part.text)
		if i == 0 {
			manualFlags(&p, "OPTIONS", cmd.NonInheritedFlags())
			manualFlags(&p, "OPTIONS OF EVERY COMMAND", cmd.InheritedFlags())
		}
	}
	if cmd.Example != "" {
		fmt.Fprintf(&p, ".SH EXAMPLES\n.EX\n")
		for line := range strings.Lines(cmd.Example) {
			p.WriteString(roff(strings.TrimSuffix(line, "\n")) + "\n")
		}
		p.WriteString(".EE\n")
	}
	var others []string
	if cmd.HasParent() {
		others = append(others, bold(pageName(cmd.Parent()))+"(1)")
	}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			others = append(others, bold(pageName(c))+"(1)")
		}
	}
	if others != nil {
		fmt.Fprintf(&p, ".SH SEE ALSO\n%s\n", strings.Join(others, ",\n"))
	}
	return p.String()
}

// manualText writes text in roff. It keeps examples as they are, fills paragraphs and formats
// entries.
func manualText(p *strings.Builder, text string) {
	kept, paragraph := false, false
	keep := func(keep bool) {
		if keep != kept {
			kept = keep
			p.WriteString(map[bool]string{true: ".EX\n", false: ".EE\n"}[kept])
		}
	}
	for line := range strings.Lines(text) {
		line = strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "\t", "    ")
		term, about, listed := entry(line)
		keep(strings.HasPrefix(line, " ") && !listed)
		if paragraph && line != "" && !listed {
			p.WriteString(".PP\n")
		}
		paragraph = line == ""
		switch {
		case listed:
			fmt.Fprintf(p, ".TP\n%s\n%s\n", bold(strings.TrimLeft(term, " ")), roff(about))
		case line != "":
			p.WriteString(roff(line) + "\n")
		}
	}
	keep(false)
}

func manualFlags(p *strings.Builder, title string, flags *pflag.FlagSet) {
	if flags.HasAvailableFlags() {
		fmt.Fprintf(p, ".SH %s\n", title)
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" {
			return
		}
		name := bold("--" + f.Name)
		if f.Shorthand != "" {
			name = bold("-"+f.Shorthand) + ", " + name
		}
		if value, _ := pflag.UnquoteUsage(f); value != "" {
			name += " \\fI" + roff(value) + "\\fP"
		}
		fmt.Fprintf(p, ".TP\n%s\n%s\n", name, roff(flagAbout(f)))
	})
}

func bold(text string) string { return `\fB` + roff(text) + `\fP` }

// inRoff maps characters to escapes, because roff would print other characters in their place. A
// command that is copied from the page must be exact.
var inRoff = map[rune]string{'\\': `\e`, '-': `\-`, '\'': `\(aq`, '`': `\(ga`, '^': `\(ha`, '~': `\(ti`}

// roff escapes a line, so that a leading dot is no request.
func roff(line string) string {
	var b strings.Builder
	if strings.HasPrefix(line, ".") {
		b.WriteString(`\&`)
	}
	for _, r := range line {
		escaped, special := inRoff[r]
		switch {
		case special:
			b.WriteString(escaped)
		case r >= 0x80: // because groff reads bytes
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
