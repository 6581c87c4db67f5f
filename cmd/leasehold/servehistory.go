package main

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/historyfile"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/pflag"
)

// historyFlags say where "leasehold serve" keeps its history, and how much of it.
type historyFlags struct {
	path string
	keep span
	size int
}

const (
	// historyKeep and historySize are the default limits of the file. The size is in MiB.
	historyKeep, historySize = "30d", 1024
	// openHistoryWithin and closeHistoryWithin limit how long opening and closing the file may
	// take.
	openHistoryWithin, closeHistoryWithin = 10 * time.Second, 2 * time.Second
)

func (f *historyFlags) add(flags *pflag.FlagSet) {
	f.keep.Set(historyKeep)
	flags.StringVar(&f.path, "history", "", "keep the history in `FILE`, of this instance alone")
	flags.Var(&f.keep, "history-keep", "drop what is older than `TIME`")
	flags.Lookup("history-keep").DefValue = historyKeep
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
	return func() { abandon.Within(closeHistoryWithin, func() { file.Close() }) }, nil
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
