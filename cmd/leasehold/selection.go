package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// A selection holds the flags that say which locks ls lists, and in which order.
type selection struct {
	sort   string // one of orders; "": the store's order
	longer span
	host   string
	labels []string
}

// orders are the values of --sort. Locks that compare equal are sorted by name.
var orders = map[string]func(a, b stateView) int{
	"name":    func(a, b stateView) int { return 0 },
	"held":    func(a, b stateView) int { return cmp.Compare(b.held(), a.held()) },
	"left":    func(a, b stateView) int { return cmp.Compare(a.left(), b.left()) },
	"waiting": func(a, b stateView) int { return cmp.Compare(len(b.Waiters), len(a.Waiters)) },
	"host":    func(a, b stateView) int { return cmp.Compare(a.host(), b.host()) },
}

var orderNames = []string{"name", "held", "left", "waiting", "host"}

func (s *selection) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&s.sort, "sort", "", "sort by `COLUMN`: "+strings.Join(orderNames, ", "))
	flags.Var(&s.longer, "held-longer-than", "list only locks held for more than `TIME`")
	flags.StringVar(&s.host, "host", "", "list only locks held or waited for by `HOST`")
	flags.StringArrayVar(&s.labels, "label", nil, "list only locks with the label `KEY=VALUE`; repeatable")
}

func (s *selection) check() error {
	if _, ok := orders[s.sort]; !ok && s.sort != "" {
		return usageErrorf("--sort %s: want %s", shown(s.sort), strings.Join(orderNames, ", "))
	}
	for _, label := range s.labels {
		if name, _, ok := strings.Cut(label, "="); !ok || name == "" {
			return usageErrorf("--label %s: want KEY=VALUE", shown(label))
		}
	}
	return nil
}

// filters reports whether some locks may be left out.
func (s *selection) filters() bool { return s.longer > 0 || s.host != "" || len(s.labels) > 0 }

// any reports whether the list may differ from the store's.
func (s *selection) any() bool { return s.sort != "" || s.filters() }

// has reports whether v is selected: one of its holders or waiters meets all conditions.
func (s *selection) has(v stateView) bool {
	return !s.filters() ||
		slices.ContainsFunc(v.Holders, func(h holderView) bool {
			return (s.longer == 0 || h.Held > time.Duration(s.longer).Seconds()) && s.describes(h.Details)
		}) ||
		s.longer == 0 && slices.ContainsFunc(v.Waiters, func(w waiterView) bool { return s.describes(w.Details) })
}

func (s *selection) describes(d detailsView) bool {
	if s.host != "" && d.Host != s.host {
		return false
	}
	for _, label := range s.labels {
		name, value, _ := strings.Cut(label, "=")
		if has, ok := d.Labels[name]; !ok || has != value {
			return false
		}
	}
	return true
}

// arrange sorts views by --sort.
func (s *selection) arrange(views []stateView) {
	slices.SortStableFunc(views, func(a, b stateView) int {
		return cmp.Or(orders[s.sort](a, b), cmp.Compare(a.Name, b.Name))
	})
}

// looked returns a message about how many locks were read and selected. all means that the whole
// store was read.
func (s *selection) looked(locks, selected int, all bool) string {
	text := fmt.Sprintf("looked at %d locks", locks)
	if locks == 1 {
		text = "looked at 1 lock"
	}
	if all {
		text += ", all there are"
	}
	switch {
	case !s.filters():
		return text
	case selected == 1:
		return text + "; 1 matches"
	}
	return fmt.Sprintf("%s; %d match", text, selected)
}

// held returns how long the longest holder has held.
func (v stateView) held() (longest float64) {
	for _, h := range v.Holders {
		longest = max(longest, h.Held)
	}
	return longest
}

// left returns the time until the first lease ends. Unknown times come last.
func (v stateView) left() float64 {
	first := 1e18
	for _, h := range v.Holders {
		if h.Left > 0 {
			first = min(first, h.Left)
		}
	}
	return first
}

// host returns the host of the first holder. Unknown hosts come last.
func (v stateView) host() string {
	for _, h := range v.Holders {
		if host := h.Details.Host; host != "" {
			return host
		}
	}
	return "\U0010ffff"
}
