package sqllock

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
)

// enter keeps other writers of the resource out until the transaction ends, and reads
// it. What has expired is removed on the way.
func (d *Driver) enter(ctx context.Context, on runner, name string) (*resource, error) {
	if _, err := on.ExecContext(ctx, d.texts.enter, name); err != nil {
		return nil, err
	}
	found, err := d.read(ctx, on, d.texts.state, names(name))
	if err != nil {
		return nil, err
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("sqllock: %d rows for a resource that was just made", len(found))
	}
	r := &found[0]
	live := r.claims[:0]
	for _, c := range r.claims {
		if c.expires > r.now {
			live = append(live, c)
		} else if err := d.dropClaim(ctx, on, r, &c); err != nil {
			return nil, err
		}
	}
	r.claims = live
	return r, nil
}

// names is the argument of the state statement. JSON, because the number of arguments
// of a prepared statement is fixed.
func names(all ...string) string {
	text, _ := json.Marshal(all) // strings always encode
	return string(text)
}

// read runs a statement of now and stateColumns, ordered by name and ticket.
func (d *Driver) read(ctx context.Context, on runner, text string, arg any) ([]resource, error) {
	rows, err := on.QueryContext(ctx, text, arg)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []resource
	for rows.Next() {
		all, err = scan(rows, all)
		if err != nil {
			return nil, err
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return all, rows.Close()
}

// scan adds one row: a further claim of the last resource, or the next resource.
func scan(rows *sql.Rows, all []resource) ([]resource, error) {
	var r resource
	var c claimRow
	l := &r.lock
	err := rows.Scan(&r.now, &l.name, &l.fence, &l.owner, &l.expires, &l.since, &l.note,
		&c.ticket, &c.owner, &c.mode, &c.status, &c.limit, &c.fence, &c.expires, &c.since, &c.note)
	if err != nil {
		return nil, err
	}
	if n := len(all); n == 0 || all[n-1].lock.name != l.name {
		all = append(all, r)
	}
	if last := &all[len(all)-1]; c.ticket > 0 {
		last.claims = append(last.claims, c)
	}
	return all, nil
}

func (d *Driver) saveLock(ctx context.Context, on runner, r *resource) error {
	l := &r.lock
	_, err := on.ExecContext(ctx, d.texts.saveLock, l.name, l.fence, l.owner, l.expires, l.since, l.note)
	return err
}

func (d *Driver) saveClaim(ctx context.Context, on runner, r *resource, c *claimRow) error {
	_, err := on.ExecContext(ctx, d.texts.saveClaim, r.lock.name, c.ticket, c.owner, int64(c.mode), int64(c.status),
		c.limit, c.fence, c.expires, c.since, c.note)
	return err
}

func (d *Driver) dropClaim(ctx context.Context, on runner, r *resource, c *claimRow) error {
	_, err := on.ExecContext(ctx, d.texts.dropClaim, r.lock.name, c.ticket)
	return err
}

// reason returns what an operator said who evicted owner; "" and false: nobody did.
func (d *Driver) reason(ctx context.Context, name, owner string) (reason string, evicted bool, err error) {
	err = d.value(ctx, &reason, d.texts.reason, name, owner)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, nil
	}
	return reason, err == nil, err
}

func (d *Driver) count(ctx context.Context, text string) (n int, err error) {
	err = d.value(ctx, &n, text)
	return n, err
}
