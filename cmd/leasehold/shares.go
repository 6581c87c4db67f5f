package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// amounts are the values of --limit or --weight: "NAME=N" for one name, and "N" for every other.
type amounts struct {
	flag  string
	texts []string

	all   int // for names without one of their own; 0: none
	each  map[string]int
	names []string // the keys of each, in the order of the flags
}

// parse parses texts, replacing an earlier result.
func (a *amounts) parse() error {
	a.all, a.each, a.names = 0, nil, nil
	for _, text := range a.texts {
		name, number := "", text
		if i := strings.LastIndexByte(text, '='); i >= 0 {
			name, number = text[:i], text[i+1:]
			if err := checkName(name); err != nil {
				return err
			}
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > driver.MaxWeight {
			return usageErrorf("--%s %s: want a number from 1 to %d, or NAME= in front of one", a.flag, shown(text), driver.MaxWeight)
		}
		if _, twice := a.each[name]; twice || name == "" && a.all > 0 {
			return usageErrorf("--%s is given twice%s", a.flag, strings.TrimSuffix(" for "+shown(name), ` for ""`))
		}
		if name == "" {
			a.all = n
			continue
		}
		if a.each == nil {
			a.each = make(map[string]int)
		}
		a.each[name] = n
		a.names = append(a.names, name)
	}
	return nil
}

func (a *amounts) isGiven() bool { return len(a.texts) > 0 }

// shares are the flags --slots, --limit and --weight: how much of which names to request.
type shares struct {
	slots         int // --slots; 0: none
	limit, weight amounts
}

func (s *shares) parse() error {
	s.limit.flag, s.weight.flag = "limit", "weight"
	if err := s.limit.parse(); err != nil {
		return err
	}
	if s.slots > 0 && s.limit.all > 0 {
		return usageErrorf("--slots N and --limit N mean the same: give one of them")
	}
	return s.weight.parse()
}

// flag returns one of the flags that were given, or "".
func (s *shares) flag() string {
	switch {
	case s.slots > 0:
		return "--slots"
	case s.limit.isGiven():
		return "--limit"
	case s.weight.isGiven():
		return "--weight"
	}
	return ""
}

// names returns the names in the flags, each once.
func (s *shares) names() []string {
	names := slices.Clone(s.limit.names)
	for _, name := range s.weight.names {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// of returns the requested limit of name; 0: none.
func (s *shares) of(name string) int {
	if n, ok := s.limit.each[name]; ok {
		return n
	}
	return max(s.slots, s.limit.all)
}

// limits reports whether any name has a limit.
func (s *shares) limits() bool { return s.slots > 0 || s.limit.isGiven() }

// options returns the options for all names, followed by those for single names.
func (s *shares) options() []leasehold.Option {
	opts := optionsOf(max(s.slots, s.limit.all), s.weight.all)
	for _, name := range s.names() {
		opts = append(opts, leasehold.For(name, optionsOf(s.limit.each[name], s.weight.each[name])...))
	}
	return opts
}

func optionsOf(limit, weight int) (opts []leasehold.Option) {
	if limit > 0 {
		opts = append(opts, leasehold.Limit(limit))
	}
	if weight > 0 {
		opts = append(opts, leasehold.Weight(weight))
	}
	return opts
}
