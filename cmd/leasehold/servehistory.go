package main

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/historyfile"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/pflag"
)

// historyFlags say where "leasehold serve" keeps its history, and how much of it.
type historyFlags struct {
	path string
	keep age
	size int
}

const (
	// historyKeep and historySize are the default limits of the file. The size is in MiB.
	historyKeep, historySize = 30 * 24 * time.Hour, 1024
	// openHistoryWithin and closeHistoryWithin limit how long opening and closing the file may
	// take.
	openHistoryWithin, closeHistoryWithin = 10 * time.Second, 2 * time.Second
)

func (f *historyFlags) add(flags *pflag.FlagSet) {
	f.keep = age(historyKeep)
	flags.StringVar(&f.path, "history", "", "keep the history in `FILE`, of this instance alone")
	flags.Var(&f.keep, "history-keep", "drop what is older than `TIME`")
	flags.IntVar(&f.size, "history-size", historySize, "drop the oldest beyond `N` MiB")
}

// openHistory opens the file of the history. The caller must call done after the Server is closed.
func (s *service) openHistory(ctx context.Context) (done func(), err error) {
	f := &s.history
	if f.path == "" {
		return func() {}, nil
	}
	if f.size < 0 {
		return nil, usageErrorf("--history-size %d is below 0", f.size)
	}
	store, earlier := identities(s.app.storeURL)
	ctx, cancel := context.WithTimeout(ctx, openHistoryWithin)
	defer cancel()
	file, err := historyfile.Open(ctx, f.path, historyfile.Options{Store: store, Earlier: earlier, Keep: time.Duration(f.keep), Bytes: int64(f.size) << 20})
	if err != nil {
		return nil, internalErrorf("--history: %w", err)
	}
	s.opts.History.File = file
	return func() { finish(closeHistoryWithin, func() { file.Close() }) }, nil
}

// selecting are the options that are part of which store a URL means. Others say how to reach or use
// it.
var selecting = []string{"context", "endpoint", "kubeconfig", "prefix", "schema"}

// identities returns a text for the store of a resolved URL, without user and secrets, and the text
// that earlier versions had for it. Theirs lacks the options; this one has a "?" even without any.
func identities(storeURL string) (store, earlier string) {
	earlier, _, _ = strings.Cut(stores.Redact(storeURL), "?")
	if strings.HasPrefix(storeURL, "sqlite:") { // a path, which may contain anything
		return storeURL + "?", earlier
	}
	place, query, _ := strings.Cut(storeURL, "?")
	scheme, hosts, _ := strings.Cut(place, "://")
	options, _ := url.ParseQuery(query) // Open has read them
	maps.DeleteFunc(options, func(key string, _ []string) bool { return !slices.Contains(selecting, key) })
	return scheme + "://" + hosts[strings.LastIndexByte(hosts, '@')+1:] + "?" + options.Encode(), earlier
}

// An age is a flag for a duration that may be in days, such as 30d.
type age time.Duration

func (a *age) String() string {
	if d := time.Duration(*a); d > 0 && d%(24*time.Hour) == 0 {
		return strconv.Itoa(int(d/(24*time.Hour))) + "d"
	}
	return (*span)(a).String()
}

// Type names the kind of value in help texts.
func (a *age) Type() string { return "duration" }

// Set refuses negative durations.
func (a *age) Set(text string) error {
	days, ok := strings.CutSuffix(text, "d")
	if !ok {
		return (*span)(a).Set(text)
	}
	n, err := strconv.Atoi(days)
	if err != nil || n < 0 {
		return errors.New("want a number with a unit such as 30d or 12h")
	}
	if n > int(maxSpan/(24*time.Hour)) {
		return errOutOfRange
	}
	*a = age(time.Duration(n) * 24 * time.Hour)
	return nil
}
