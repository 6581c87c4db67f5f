package sqllock

import (
	"cmp"
	"context"
)

// Note implements driver.Noter.
func (c *claim) Note(ctx context.Context, note string) error {
	note = printable(note)
	var lost error
	err := c.d.change(ctx, c.req.Resource, func(r *resource) bool {
		lost = c.alter(r, func(mine *claimRow) {
			if mine != nil {
				mine.Note = note
			} else {
				r.lock.note = note
			}
		})
		return lost == nil
	})
	c.late = c.late || err != nil
	if err = cmp.Or(err, lost); err == nil {
		c.req.Note = note
	}
	return err
}
