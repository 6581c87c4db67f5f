package locktest_test

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/leasehold-go/leasehold/driver"
)

// all is what there is, whatever its name.
func all(w *warped, ctx context.Context) ([]driver.State, error) {
	states, _, err := w.Driver.List(ctx, "", "", 1<<20)
	return states, err
}

// brokenLists show pages that are wrong.
var brokenLists = []breakage{
	{name: "a listed prefix is a pattern", rejects: []string{"ListIsSortedAndLiteral"}, warp: warp{list: func(w *warped, ctx context.Context, prefix, _ string, _ int) ([]driver.State, string, error) {
		states, err := all(w, ctx)
		return slices.DeleteFunc(states, func(st driver.State) bool {
			n := len(prefix)
			match, _ := path.Match(prefix, st.Resource[:min(len(st.Resource), n)])
			return !match
		}), "", err
	}}},
	{name: "a listed prefix is compared without case", rejects: []string{"ListIsSortedAndLiteral"}, warp: warp{list: func(w *warped, ctx context.Context, prefix, _ string, _ int) ([]driver.State, string, error) {
		states, err := all(w, ctx)
		return slices.DeleteFunc(states, func(st driver.State) bool {
			return !strings.HasPrefix(strings.ToLower(st.Resource), strings.ToLower(prefix))
		}), "", err
	}}},
	{name: "List is not sorted", rejects: []string{"ListIsSortedAndLiteral"}, warp: warp{list: func(w *warped, ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
		states, next, err := w.Driver.List(ctx, prefix, after, limit)
		slices.Reverse(states)
		return states, next, err
	}}},
	{name: "List shows the holders of the neighbouring name", rejects: []string{"ListHasPages"}, warp: warp{list: func(w *warped, ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
		states, next, err := w.Driver.List(ctx, prefix, after, limit)
		for i := range len(states) / 2 {
			states[2*i].Holders, states[2*i+1].Holders = states[2*i+1].Holders, states[2*i].Holders
		}
		return states, next, err
	}}},
	{name: "List shows a name twice", rejects: []string{"ListHasPages", "ListIsSortedAndLiteral"}, warp: warp{list: func(w *warped, ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
		states, next, err := w.Driver.List(ctx, prefix, after, limit)
		if n := len(states); n > 0 && n < limit {
			states = append(states, states[n-1])
		}
		return states, next, err
	}}},
	{name: "List knows no pages", rejects: []string{"ListHasPages"}, warp: warp{list: func(w *warped, ctx context.Context, prefix, _ string, _ int) ([]driver.State, string, error) {
		return w.Driver.List(ctx, prefix, "", 1<<20)
	}}},
	{name: "the first page is all", rejects: []string{"ListHasPages", "ListGoesOnBehindWhatHasGone"}, warp: warp{list: func(w *warped, ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
		states, _, err := w.Driver.List(ctx, prefix, after, limit)
		return states, "", err
	}}},
	{name: "pages do not end", rejects: []string{"ListHasPages"}, warp: warp{list: func(w *warped, ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
		states, _, err := w.Driver.List(ctx, prefix, after, limit)
		if len(states) == 0 {
			return nil, cmp.Or(after, "~"), err
		}
		return states, states[len(states)-1].Resource, err
	}}},
	{name: "the name between two pages is missing", rejects: []string{"ListHasPages", "ListMissesNobodyWhileOthersCome"}, warp: warp{list: func(w *warped, ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
		states, next, err := w.Driver.List(ctx, prefix, after, limit)
		if after != "" && len(states) > 0 {
			states = states[1:]
		}
		return states, next, err
	}}},
	{name: "a cursor is more than a position", rejects: []string{"ListKeepsToThePrefixAfterAnyCursor"}, warp: warp{list: func(w *warped, ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
		of, last, found := strings.Cut(after, "\x00") // the prefix, which no later call checks
		if !found {
			of = prefix
		}
		states, next, err := w.Driver.List(ctx, of, last, limit)
		if next != "" {
			next = of + "\x00" + next
		}
		return states, next, err
	}}},
	{name: "a cursor is a number of names", rejects: []string{"ListGoesOnBehindWhatHasGone"}, warp: warp{list: func(w *warped, ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
		states, _, err := w.Driver.List(ctx, prefix, "", 1<<20)
		skip, _ := strconv.Atoi(after)
		states = states[min(skip, len(states)):]
		if len(states) <= limit {
			return states, "", err
		}
		return states[:limit], strconv.Itoa(skip + limit), err
	}}},
	{name: "a cursor is its process' own", rejects: []string{"ListHasPages"}, warp: func() warp {
		var mu sync.Mutex
		of := make(map[string]*warped)
		return warp{list: func(w *warped, ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
			mu.Lock()
			defer mu.Unlock()
			if maker := of[after]; after != "" && maker != w {
				return nil, "", errors.New("no such cursor")
			}
			states, next, err := w.Driver.List(ctx, prefix, after, limit)
			of[next] = w
			return states, next, err
		}}
	}()},
}
