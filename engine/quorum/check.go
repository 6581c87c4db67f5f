package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/several"
)

// each calls do for every node at once, and waits for all.
func (d *Driver) each(do func(i int, n *node) error) []error {
	all := len(d.nodes)
	answers := make(chan []error, 1)
	ask := func() { answers <- several.Errors(all, all, func(i int) error { return do(i, d.nodes[i]) }) }
	if !d.life.Go(ask) {
		return slices.Repeat([]error{driver.ErrClosed}, all)
	}
	return <-answers
}

// majorityOf returns nil if more than half of the nodes have succeeded.
func (d *Driver) majorityOf(call string, errs []error) error {
	failed := countIf(errs, func(err error) bool { return err != nil })
	if failed <= len(d.nodes)-d.majority {
		return nil
	}
	return &NodesError{Call: call, Nodes: errs}
}

// Check asks all nodes that are a [driver.Checker]. Nodes whose check fails are findings
// while more than half succeed.
func (d *Driver) Check(ctx context.Context) ([]driver.Finding, error) {
	found := make([][]driver.Finding, len(d.nodes))
	errs := d.each(func(i int, n *node) (err error) {
		if checker, ok := n.driver.(driver.Checker); ok {
			found[i], err = checker.Check(ctx)
		}
		return err
	})
	var all []driver.Finding
	for i := range d.nodes {
		where := fmt.Sprintf("node %d", i+1)
		for _, f := range found[i] {
			f.Where = cmp.Or(f.Where, where)
			all = append(all, f)
		}
		if errs[i] != nil {
			all = append(all, driver.Finding{About: driver.AboutServer, Where: where, Level: driver.Weak,
				Text: "its check failed: " + errs[i].Error(), Advice: "start or repair it before another fails"})
		}
	}
	return append(all, driver.QuorumFinding("", len(d.nodes))), d.majorityOf("check", errs)
}

// Rehearse calls Rehearse on all nodes that are a [driver.Checker]; more than half must succeed.
func (d *Driver) Rehearse(ctx context.Context) error {
	errs := d.each(func(_ int, n *node) error {
		if checker, ok := n.driver.(driver.Checker); ok {
			return checker.Rehearse(ctx)
		}
		return nil
	})
	err := d.majorityOf("rehearse", errs)
	for _, e := range errs {
		if err != nil && errors.Is(e, driver.ErrNotYet) { // it may succeed later
			return fmt.Errorf("%w: %w", driver.ErrNotYet, err)
		}
	}
	return err
}
