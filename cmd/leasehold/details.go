package main

import (
	"os"
	"strings"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/details"
	"github.com/spf13/pflag"
)

// detailFlags describe the holder of NAME and its purpose.
type detailFlags struct {
	note   string
	link   string
	labels []string
}

func (f *detailFlags) add(set *pflag.FlagSet, whom string) {
	set.StringVar(&f.note, "note", "", "show `TEXT` to those who ask who "+whom)
	set.StringVar(&f.link, "link", "", "show `URL` with it (default in CI: the job's)")
	set.StringArrayVar(&f.labels, "label", nil, "show the label `KEY=VALUE` too; repeatable")
}

// details returns the details of process pid, which runs program. The Locker fills in the rest.
func (f *detailFlags) details(program string, pid int) (leasehold.Details, error) {
	mine := details.Mine() // of this process, whose own place in the queue wait looks for
	d := leasehold.Details{Host: mine.Host, PID: pid, Program: strings.ToValidUTF8(program, "?"), Text: f.note, Link: f.link}
	for _, label := range f.labels {
		name, value, ok := strings.Cut(label, "=")
		if !ok || name == "" {
			return d, usageErrorf("--label %s: want KEY=VALUE", shown(label))
		}
		if _, twice := d.Labels[name]; twice {
			return d, usageErrorf("--label %s is given twice", shown(name))
		}
		if d.Labels == nil {
			d.Labels = make(map[string]string)
		}
		d.Labels[name] = value
	}
	if err := details.Details(d).Check(); err != nil {
		return d, usageErrorf("--note, --link and --label: %w", err)
	}
	if link := jobLink(); f.link == "" && fits(d, link) {
		d.Link = link
	}
	if fits(d, "") {
		return d, nil
	}
	d.Host, d.PID, d.Program = "", 0, "" // no flag has asked for them
	if err := driver.CheckNote(details.Details(d).Note()); err != nil {
		return d, usageErrorf("--note, --link and --label: %w", err)
	}
	return d, nil
}

// fits reports whether an engine can keep d and more beside it.
func fits(d leasehold.Details, more string) bool {
	return driver.CheckNote(details.Details(d).Note()+more) == nil
}

// jobLink returns the page of the CI job that this process is part of, or "". It reads the
// variables of GitHub, GitLab, Jenkins, Buildkite and CircleCI.
func jobLink() string {
	candidates := []string{os.Getenv("CI_JOB_URL"), os.Getenv("BUILDKITE_BUILD_URL"), os.Getenv("CIRCLE_BUILD_URL"), os.Getenv("BUILD_URL")}
	if server, repository, run := os.Getenv("GITHUB_SERVER_URL"), os.Getenv("GITHUB_REPOSITORY"), os.Getenv("GITHUB_RUN_ID"); server != "" && repository != "" && run != "" {
		candidates = append([]string{server + "/" + repository + "/actions/runs/" + run}, candidates...)
	}
	for _, link := range candidates {
		if link != "" && (details.Details{Link: link}).Check() == nil {
			return link
		}
	}
	return ""
}
