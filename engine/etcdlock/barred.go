package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// markWithin bounds the call that makes a mark. The mark's lease lives for that much longer.
const markWithin = 10 * time.Second

// keepOwnerOut leaves a mark, if keep is not 0, which every put of a claim's key compares. Once the
// mark is there, no key of its owner can come, so the owner's keys can be read and deleted. One key
// is spared: the place of the claim, which its release deletes. Without space there is no mark, but
// the server refuses late puts too.
func (c *claim) keepOwnerOut(ctx context.Context, keep time.Duration) (others bool, err error) {
	if keep == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, markWithin)
	defer cancel()
	resp, err := c.mark(ctx, keep)
	if errors.Is(err, ErrNoSpace) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	spared, known := c.spares()
	for _, e := range entries(c.dir, found(resp, 1)) {
		switch {
		case !c.isOurs(e) || e.key == spared:
		case !known:
			spared, known = e.key, true // find takes the first one
		default:
			was, err := c.d.delete(ctx, e) // a key of another process, or one that came late
			if err != nil {
				return others, err
			}
			others = others || was
		}
	}
	return others, nil
}

// mark makes the mark and reads the keys of the resource.
func (c *claim) mark(ctx context.Context, keep time.Duration) (*clientv3.TxnResponse, error) {
	lease, _, err := c.d.grantLease(ctx, keep+markWithin)
	if err != nil {
		return nil, err
	}
	key := fmt.Sprintf("%s%x", c.d.markDir(c.dir, c.req.Owner), int64(lease))
	return c.d.commitAgain(ctx, nil, clientv3.OpPut(key, "", clientv3.WithLease(lease)), keysOf(c.dir))
}

// spares returns the key of the claim's place, which its release deletes. If the claim has no
// place, known is false, and the release looks again for a place of its owner. Keys that the driver
// is to delete by itself are not spared, because another process may resume them first. Nor are keys
// that another claim releases.
func (c *claim) spares() (key string, known bool) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	switch p := c.current(); {
	case p == nil:
		c.tried = false
		return "", false
	case c.mayEnd(p):
		return p.key, true
	}
	return "", true
}
