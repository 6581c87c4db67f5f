package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/record"
)

// list encodes a statement's list argument as JSON, because the number of arguments of a prepared
// statement is fixed.
func list[T any](all ...T) string {
	if len(all) == 0 {
		return "[]"
	}
	text, _ := json.Marshal(all) // names, owners and numbers always encode
	return string(text)
}

// look runs a statement that returns the database's instant, the floor, a name and stateColumns.
func (d *Driver) look(ctx context.Context, text string, args ...any) ([]*row, error) {
	return read(ctx, d, scan, text, args...)
}

// readNames runs a statement that returns names.
func (d *Driver) readNames(ctx context.Context, text, arg string) ([]string, error) {
	return read(ctx, d, func(rows *sql.Rows) (name string, err error) {
		err = rows.Scan(&name)
		return name, err
	}, text, arg)
}

// read runs a statement and returns what scan makes of each row.
func read[T any](ctx context.Context, d *Driver, scan func(*sql.Rows) (T, error), text string, args ...any) (all []T, err error) {
	on, err := d.ready(ctx)
	if err != nil {
		return nil, err
	}
	err = d.retry(ctx, on, func(on runner) error {
		all = nil
		return each(ctx, on, func(rows *sql.Rows) error {
			one, err := scan(rows)
			if err == nil {
				all = append(all, one)
			}
			return err
		}, text, args...)
	})
	return all, err
}

// each runs a statement and calls scan for each row that it returns, until scan fails.
func each(ctx context.Context, on runner, scan func(*sql.Rows) error, text string, args ...any) error {
	rows, err := on.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return cmp.Or(rows.Err(), rows.Close())
}

// lookAt reads a resource in order to decide by it. waits means that the caller may have a place.
func (d *Driver) lookAt(ctx context.Context, name string, waits bool) (*row, error) {
	r, err := d.lookBy(ctx, d.texts.state, name)
	if err == nil && (waits || r.crowd > int64(r.now)) {
		err = d.line(ctx, r)
	}
	return r, err
}

// line reads the first places, where that takes a statement of its own. Places that were taken or
// left since the row was read affect only the order.
func (d *Driver) line(ctx context.Context, r *row) error {
	if d.texts.first == "" {
		return nil
	}
	all, err := read(ctx, d, func(rows *sql.Rows) (p place, err error) {
		err = rows.Scan(&p.seq, &p.owner, &p.mode, &p.limit, &p.wants, &p.note, &p.ends)
		return p, err
	}, d.texts.first, r.name, r.served)
	r.line(all)
	r.DropOver(r.now)
	return err
}

func (d *Driver) lookBy(ctx context.Context, text, name string) (*row, error) {
	all, err := d.look(ctx, text, list(name))
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("sqllock: %d answers about one resource", len(all))
	}
	if err != nil {
		return nil, err
	}
	return all[0], all[0].damage
}

// join takes the last place for req, with a number from the given one on, unless req's owner has a
// place. The heartbeats of proc keep it. join returns the row without places, as of the time when
// others could no longer overtake the place. It returns nil if the row must be read.
func (d *Driver) join(ctx context.Context, req *driver.Request, proc string, number int64) (*row, error) {
	mode, limit := stored(req)
	args := []any{req.Resource, req.Owner, proc, mode, limit, record.Micros(req.TTL), req.Note}
	if d.texts.join == "" {
		_, err := d.changed(ctx, d.texts.insert, append(args, number)...)
		return nil, err
	}
	all, err := d.look(ctx, d.texts.join, append(args, record.Micros(placeTTL), d.listensFor(req))...)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], all[0].damage
}

// maxPatience bounds how far the pause between two attempts to change a row grows, in round trips.
const maxPatience = 16

// A change is one call's change of a resource. Several changes may share a write; each sees the row
// as the previous one left it.
type change struct {
	decide func(r *row) (write bool)
	waits  bool // the caller may have a place
}

// change reads a resource, lets decide change it, and writes it back if decide returns true. If
// another wrote the row meanwhile, it starts again. Concurrent changes in this Driver share reads
// and writes. A late write changes nothing if its caller has given up and the row was written
// since. After change returns an error, decide is not called again.
func (d *Driver) change(ctx context.Context, name string, decide func(r *row) (write bool)) error {
	return d.changeFor(ctx, name, change{decide: decide})
}

// changeFor is change for a call that may have a place.
func (d *Driver) changeFor(ctx context.Context, name string, c change) error {
	if d.closed.Load() { // a closed driver does not wait for others
		return driver.ErrClosed
	}
	return d.rows.Do(ctx, name, c)
}

// changeAll makes changes of a row by one write. A missing row is created first and then read
// again. Otherwise the row might have been created and removed since the read, and the write would
// give a fence that is not above the fences of that row.
func (d *Driver) changeAll(ctx context.Context, name string, all iter.Seq[change]) error {
	for try := 1; ; try++ {
		start := time.Now()
		waits := false
		for c := range all {
			waits = waits || c.waits
		}
		r, err := d.lookAt(ctx, name, waits)
		if err != nil {
			return err
		}
		write := false
		for c := range all {
			write = c.decide(r) || write
		}
		if !write {
			return nil
		}
		if r.rev == 0 {
			if err := d.exec(ctx, d.texts.raise, name, 0); err != nil {
				return err
			}
			continue
		}
		trip := time.Since(start) // others may write between read and write for as long
		written, err := d.save(ctx, r)
		if err != nil {
			return err
		}
		if written {
			d.wakeNext(ctx, r)
			return nil
		}
		if err := rest(ctx, time.Duration(min(try, maxPatience))*max(minPause, trip)); err != nil {
			return err
		}
	}
}

// save writes a resource unless it has changed since it was read.
func (d *Driver) save(ctx context.Context, r *row) (bool, error) {
	c := r.encode()
	if d.texts.join == "" {
		// A join does not change the row. A place may have come since it was read, and left the row as it was
		// because newcomers were refused for some time to come.
		c.crowd = max(c.crowd, min(r.crowd, int64(r.now)+record.Micros(placeTTL)))
	}
	text, args := d.texts.save, []any{r.name, c.fence, c.owner, c.expires, c.since, c.note, c.crowd, c.record, c.served, r.rev}
	if r.recall != 0 && d.texts.asking.save != "" {
		text, args = d.texts.asking.save, append(args, r.recall)
	}
	_, written, err := d.number(ctx, text, args...)
	return written, err
}

// wakeNext notifies the waiters whose turn has come. If it fails, they find out by polling.
func (d *Driver) wakeNext(ctx context.Context, r *row) {
	if next := r.next(); d.texts.wake != "" && len(next) > 0 {
		_ = d.exec(ctx, d.texts.wake, list(next...))
	}
}

// rest waits for a random time of about d, or until ctx ends.
func rest(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	return pause.For(ctx, d/2+rand.N(d))
}
