package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The Long text of a command has two parts. The part before the first heading, a line that begins
// with "# ", is the help text, which fits on one screen. The sections after it appear in the manual
// page and in "leasehold help COMMAND --full".
//
// In both parts, unindented lines form paragraphs and are filled. An indented line with two spaces
// between a term and a text is an entry. Any other indented line is an example.

// helpWidth is the width of help, unless the terminal is narrower.
const helpWidth = 80

// helpFlags is the annotation that groups the flags of a command with many. Each line has a title,
// a colon and the names of flags. Of flags in no group, only the names are listed.
const helpFlags = "flags"

// A section is one section of a manual page.
type section struct{ title, text string }

// sections returns the parts of the Long text. The first is the help text, without a title.
func sections(cmd *cobra.Command) (all []section) {
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	for i, part := range strings.Split("\n\n"+text, "\n\n# ") {
		s := section{text: part}
		if i > 0 {
			s.title, s.text, _ = strings.Cut(part, "\n")
		}
		s.text = strings.Trim(s.text, "\n")
		all = append(all, s)
	}
	return all
}

// writeHelp writes the help of cmd in lines of at most width cells, as far as its words allow. If
// full is true, it writes all of the manual page.
func writeHelp(w io.Writer, cmd *cobra.Command, width int, full bool) {
	width = min(width, helpWidth)
	all := sections(cmd)
	fmt.Fprintf(w, "%s\n", fillText(all[0].text, width))
	fmt.Fprintln(w, hanging("Usage:", len("Usage: "), usageLine(cmd), width))
	if cmd.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	writeCommands(w, cmd, width)
	rest := writeFlags(w, cmd, width, full)
	var last []string
	if len(rest) > 0 {
		last = append(last, "Other flags: --"+strings.Join(rest, ", --"))
	}
	if cmd.HasParent() {
		last = append(last, "Global flags: --store URL, --require-shared, --json, -v; see leasehold help")
	}
	if !full && (len(all) > 1 || len(rest) > 0) {
		last = append(last, "More: leasehold help"+strings.TrimPrefix(cmd.CommandPath(), "leasehold")+" --full, or man "+pageName(cmd))
	}
	for i, line := range last {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, hanging("", 0, line, width))
	}
	if full {
		for _, s := range all[1:] {
			fmt.Fprintf(w, "\n%s\n%s", strings.ToUpper(s.title), fillText(s.text, width))
		}
	}
}

func usageLine(cmd *cobra.Command) string {
	if cmd.HasAvailableSubCommands() {
		return cmd.CommandPath() + " COMMAND [flags]"
	}
	return cmd.UseLine()
}

// writeCommands lists the subcommands of cmd, by group.
func writeCommands(w io.Writer, cmd *cobra.Command, width int) {
	groups := cmd.Groups()
	if len(groups) == 0 && cmd.HasAvailableSubCommands() {
		groups = []*cobra.Group{{Title: "Commands:"}}
	}
	for i, group := range groups {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, group.Title)
		for _, c := range cmd.Commands() {
			if c.GroupID == group.ID && c.IsAvailableCommand() {
				fmt.Fprintln(w, hanging("  "+c.Name(), c.NamePadding()+3, c.Short, width))
			}
		}
	}
}

// writeFlags lists the flags of cmd except --help. It returns the names of flags that it has not
// listed.
func writeFlags(w io.Writer, cmd *cobra.Command, width int, full bool) (rest []string) {
	set := cmd.LocalFlags()
	groups, rest := flagGroups(cmd, full)
	column := 0
	for _, g := range groups {
		for _, name := range g.flags {
			column = max(column, runewidth.StringWidth(flagTerm(set.Lookup(name)))+3)
		}
	}
	for i, g := range groups {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s:\n", g.title)
		for _, name := range g.flags {
			f := set.Lookup(name)
			fmt.Fprintln(w, hanging(flagTerm(f), column, flagAbout(f), width))
		}
	}
	return rest
}

// A flagGroup is a group of flags in a help text.
type flagGroup struct {
	title string
	flags []string
}

// flagGroups returns the annotated groups, and the names of the other flags except --help. If full
// is true, or no group is annotated, the other flags form a group instead.
func flagGroups(cmd *cobra.Command, full bool) (groups []flagGroup, rest []string) {
	listed := []string{"help"}
	for line := range strings.Lines(cmd.Annotations[helpFlags]) {
		title, text, _ := strings.Cut(line, ":")
		names := strings.Fields(text)
		groups, listed = append(groups, flagGroup{title, names}), append(listed, names...)
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && !slices.Contains(listed, f.Name) {
			rest = append(rest, f.Name)
		}
	})
	switch {
	case rest == nil:
	case groups == nil:
		return []flagGroup{{"Flags", rest}}, nil
	case full:
		return append(groups, flagGroup{"Other", rest}), nil
	}
	return groups, rest
}

func flagTerm(f *pflag.Flag) string {
	term := "      --" + f.Name
	if f.Shorthand != "" {
		term = "  -" + f.Shorthand + ", --" + f.Name
	}
	if value, _ := pflag.UnquoteUsage(f); value != "" {
		term += " " + value
	}
	return term
}

func flagAbout(f *pflag.Flag) string {
	_, about := pflag.UnquoteUsage(f)
	if !slices.Contains([]string{"", "0", "false", "[]"}, f.DefValue) {
		about += " (default " + f.DefValue + ")"
	}
	return about
}

// fillText fills paragraphs, and indents entries below their texts. Its result ends with an empty
// line.
func fillText(text string, width int) string {
	var b, paragraph strings.Builder
	flush := func() {
		if paragraph.Len() > 0 {
			b.WriteString(hanging("", 0, paragraph.String(), width) + "\n")
			paragraph.Reset()
		}
	}
	for line := range strings.Lines(text + "\n") {
		line = strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "\t", "    ")
		if line != "" && line[0] != ' ' {
			paragraph.WriteString(line + " ")
			continue
		}
		flush()
		if term, about, ok := entry(line); ok {
			line = hanging(term, len(line)-len(about), about, width)
		}
		b.WriteString(line + "\n")
	}
	flush()
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// entry splits an indented line into a term and its text.
func entry(line string) (term, about string, ok bool) {
	body := strings.TrimLeft(line, " ")
	i := strings.Index(body, "  ")
	if len(body) == len(line) || i < 0 {
		return "", "", false
	}
	return line[:len(line)-len(body)+i], strings.TrimLeft(body[i:], " "), true
}

// hanging returns term, followed by text filled from column on.
func hanging(term string, column int, text string, width int) string {
	var b strings.Builder
	b.WriteString(term)
	at := runewidth.StringWidth(term)
	if column > 0 {
		b.WriteString(strings.Repeat(" ", max(1, column-at)))
		at = max(column, at+1)
	}
	for i, word := range strings.Split(strings.TrimSpace(text), " ") {
		n := runewidth.StringWidth(word)
		switch {
		case i == 0:
		case at+1+n > width:
			b.WriteString("\n" + strings.Repeat(" ", column))
			at = column
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}
