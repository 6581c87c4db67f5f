package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pages"
	"github.com/leasehold-go/leasehold/internal/several"
)

const (
	// nodePage is the number of names requested from a node at once, so that it answers soon.
	nodePage = 100
	// inspected is the number of names inspected at once.
	inspected = 8
)

// A page is the answer of a node.
type page struct {
	states  []driver.State
	next    string
	damaged error
}

// page lists at n. See node.list for hurry.
func (n *node) page(ctx context.Context, hurry bool, prefix, after string, limit int) (p page, err error) {
	err = n.list(ctx, hurry, func(ctx context.Context) (err error) {
		if n.operator == nil {
			return driver.ErrUnsupported
		}
		p.states, p.next, err = n.operator.List(ctx, prefix, after, min(limit, nodePage))
		if errors.Is(err, driver.ErrCorrupt) {
			p.damaged, err = err, nil
		}
		return err
	})
	return p, err
}

// List returns the resources that are held by the rule of Inspect. If all resources of the nodes
// fit into one page, it returns that page. Otherwise it lists the nodes one by one, in the order
// passed to New, and inspects each name at all of them. A name that several nodes list then
// appears several times.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	if after == "" {
		if states, whole, err := d.listAll(ctx, prefix, limit); whole || err != nil && !errors.Is(err, driver.ErrCorrupt) {
			return states, "", err
		}
	}
	at, err := d.placeOf(after)
	if err != nil {
		return nil, "", err
	}
	for v := (verdict{}); at.node < len(d.nodes); at.skip() {
		last := at.failed == len(d.nodes)-d.majority // no other may be passed over
		var p page
		err := d.each(func(i int, n *node) (err error) {
			if i == at.node {
				p, err = n.page(ctx, !last, prefix, at.after, limit)
			}
			return err
		})[at.node]
		if err == nil {
			states, err := d.inspectAll(ctx, p.states)
			if err != nil && !errors.Is(err, driver.ErrCorrupt) {
				return nil, "", err
			}
			return states, at.next(d, p.next), errors.Join(p.damaged, err)
		}
		v.add(answer{part: &part{node: d.nodes[at.node]}, err: err})
		if last {
			for _, n := range d.nodes {
				n.late.Store(false) // it may only be slow, and is needed now
			}
		}
		if ctx.Err() != nil || last {
			return nil, "", v.report("list", len(d.nodes))
		}
	}
	return nil, "", nil
}

// listAll asks all nodes for everything. whole reports that it fits into a page.
func (d *Driver) listAll(ctx context.Context, prefix string, limit int) (held []driver.State, whole bool, err error) {
	pages, more, late, err := d.firstPages(ctx, prefix, limit)
	if more || err != nil {
		return nil, false, err
	}
	byResource := make(map[string][]driver.State)
	var damaged []error
	for _, p := range pages {
		damaged = append(damaged, p.damaged)
		for _, st := range p.states {
			byResource[st.Resource] = append(byResource[st.Resource], st)
		}
	}
	var unsure []driver.State
	for name, states := range byResource {
		switch st := d.merge(name, states, len(d.nodes)-len(pages)); {
		case len(st.Holders) == 0:
		case late && len(d.merge(name, states, 0).Holders) == 0: // a node may only have been slow
			unsure = append(unsure, st)
		default:
			held = append(held, st)
		}
	}
	sure, err := d.inspectAll(ctx, unsure)
	switch {
	case err == nil, errors.Is(err, driver.ErrCorrupt):
		held, damaged = append(held, sure...), append(damaged, err)
	case ctx.Err() != nil:
		return nil, false, err
	default: // a slow node hides no others
		held = append(held, unsure...)
	}
	slices.SortFunc(held, byName)
	return held, len(held) <= limit, errors.Join(damaged...)
}

// firstPages returns the first pages of a majority of the nodes, and of others that are not much
// slower. more reports that one of them is not the last, and is returned at once. late reports that
// others were not waited for.
func (d *Driver) firstPages(ctx context.Context, prefix string, limit int) (pages []page, more, late bool, err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	start := time.Now()
	var mu sync.Mutex // guards pages, more and cut
	cut := false
	errs := d.each(func(_ int, n *node) error {
		p, err := n.page(ctx, false, prefix, "", limit)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if pages = append(pages, p); p.next != "" {
			more = true
			end()
		}
		if len(pages) == d.majority {
			time.AfterFunc(max(n.timeout, time.Since(start)), func() {
				mu.Lock()
				defer mu.Unlock()
				cut = true
				end()
			})
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	if more {
		return nil, true, false, nil
	}
	for i, err := range errs {
		if err != nil && cut {
			d.nodes[i].late.Store(true)
		}
	}
	return pages, false, cut, d.majorityOf("list", errs)
}

// inspectAll returns the states that are held at a majority.
func (d *Driver) inspectAll(ctx context.Context, states []driver.State) ([]driver.State, error) {
	held := make([]driver.State, len(states))
	errs := several.Errors(len(states), inspected, func(i int) (err error) {
		held[i], err = d.Inspect(ctx, states[i].Resource)
		return err
	})
	held = slices.DeleteFunc(held, func(st driver.State) bool { return len(st.Holders) == 0 })
	slices.SortFunc(held, byName)
	return held, pages.Damage(errs)
}

// A place is where a page ends and the next one begins.
type place struct {
	node   int // the next node
	failed int // how many nodes before it were passed over, because they did not answer
	after  string
}

// placeOf reverses place.next.
func (d *Driver) placeOf(text string) (p place, err error) {
	if text == "" {
		return p, nil
	}
	node, rest, _ := strings.Cut(text, ".")
	failed, after, _ := strings.Cut(rest, ".")
	p.after = after
	if p.node, err = strconv.Atoi(node); err == nil {
		p.failed, err = strconv.Atoi(failed)
	}
	spare := len(d.nodes) - d.majority
	if err != nil || p.node < 0 || p.node >= len(d.nodes) || p.failed < max(0, p.node-spare) || p.failed > min(p.node, spare) {
		return p, fmt.Errorf("quorum: no place to go on from: %q", text)
	}
	return p, nil
}

// skip moves on to the next node, past one that does not answer.
func (p *place) skip() { p.node, p.failed, p.after = p.node+1, p.failed+1, "" }

// next returns the place after a page of the node. A resource that a majority holds is at one of
// any n−majority+1 nodes.
func (p *place) next(d *Driver, after string) string {
	if p.after = after; after == "" {
		p.node++
		if p.node-p.failed > len(d.nodes)-d.majority {
			return ""
		}
	}
	return fmt.Sprintf("%d.%d.%s", p.node, p.failed, p.after)
}
