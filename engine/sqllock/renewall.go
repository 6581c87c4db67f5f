package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
	"github.com/leasehold-go/leasehold/internal/several"
)

// waitShare limits how long a batch waits for rows that others have locked: this part of its
// shortest TTL. It still returns long before its deadlines.
const waitShare = 16

// errLocked means that nothing was changed. The core tries again.
var errLocked = errors.New("sqllock: somebody keeps the row of this resource locked")

// RenewAll implements [driver.BatchRenewer]. One statement renews all exclusive leases;
// databases whose UPDATE can neither skip locked rows nor return rows need three. Calls that come
// meanwhile share the next statement. Other leases, and those that the statement did not find, are
// renewed resource by resource. Locked rows are skipped and keep no connection.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	all := make([]*driver.Renewal, len(renewals))
	wait := renewals[0].TTL
	for i := range renewals {
		all[i] = &renewals[i]
		all[i].Claim.(*claim).collect()
		wait = min(wait, all[i].TTL)
	}
	d.renewUntil(ctx, all, time.Now().Add(wait/waitShare))
}

// renewUntil is RenewAll that waits for locked rows until the given time.
func (d *Driver) renewUntil(ctx context.Context, renewals []*driver.Renewal, until time.Time) {
	var mine renewing
	var plain []*driver.Renewal
	rows := make(map[string][]*driver.Renewal)
	for _, r := range renewals {
		c := r.Claim.(*claim)
		if !c.lengthens(r.TTL) {
			rows[c.req.Resource] = append(rows[c.req.Resource], r)
			continue
		}
		plain = append(plain, r)
		mine.all = append(mine.all, request{Name: c.req.Resource, Owner: c.req.Owner, TTL: record.Micros(r.TTL), Asks: asksFor(&c.req)})
	}
	var byRow sync.WaitGroup
	defer byRow.Wait()
	if len(rows) > 0 { // beside the statement, which may hang
		byRow.Go(func() { d.renewByRow(ctx, rows, until) })
	}
	if len(plain) == 0 {
		return
	}
	_, err := d.ready(ctx)
	if err == nil { // a closed driver does not wait for others
		err = d.renewals.Do(ctx, "", &mine)
	}
	d.renewByRow(ctx, mine.answer(plain, err), until)
}

// answer answers the renewals of a call whose statement has ended in err. It returns by name those
// that the statement did not find, or all if one row may be damaged.
func (m *renewing) answer(renewals []*driver.Renewal, err error) (missed map[string][]*driver.Renewal) {
	damaged := errors.Is(err, driver.ErrCorrupt)
	missed = make(map[string][]*driver.Renewal)
	for _, r := range renewals {
		c := r.Claim.(*claim)
		answer, found := m.fences[grantee{c.req.Resource, c.req.Owner}]
		if !damaged && (found || err != nil) { // another call may have renewed for less
			number, others := told(answer)
			r.Answer(c.renewed(r.TTL, number, others, err))
		} else {
			missed[c.req.Resource] = append(missed[c.req.Resource], r)
		}
	}
	return missed
}

// renewByRow renews leases by the records of their rows. A write would wait for a row that somebody
// has locked, so it looks at such a row again, until the given time at most. Once rows are unlocked,
// a statement may renew many of them. The writes of other rows begin before that, and may hang. If
// it cannot find out, it answers with the error.
func (d *Driver) renewByRow(ctx context.Context, rows map[string][]*driver.Renewal, until time.Time) {
	var begun sync.WaitGroup
	defer begun.Wait()
	for try := 1; len(rows) > 0; try++ {
		there, err := d.lockedOf(ctx, slices.Collect(maps.Keys(rows)))
		locked := make(map[string][]*driver.Renewal)
		var names []string // of the others
		for name, renewals := range rows {
			if err == nil && there[name] {
				locked[name] = renewals
			} else {
				names = append(names, name)
			}
		}
		damaged := errors.Is(err, driver.ErrCorrupt) && len(names) > 1 // maybe one row of many
		looked, wereLocked := rows, try > 1 && err == nil
		begun.Go(func() {
			if wereLocked {
				var unlocked []*driver.Renewal
				for _, name := range names {
					unlocked = append(unlocked, looked[name]...)
				}
				d.renewUntil(ctx, unlocked, until)
				return
			}
			several.Each(ctx, len(names), maxRows, slowRow, func(i int) {
				switch name, renewals := names[i], looked[names[i]]; {
				case damaged:
					d.renewByRow(ctx, map[string][]*driver.Renewal{name: renewals}, until)
				case err != nil:
					fail(renewals, err)
				default:
					select {
					case d.byRow <- struct{}{}:
						d.renewRow(ctx, name, renewals)
						<-d.byRow
					case <-ctx.Done():
						fail(renewals, ctx.Err())
					}
				}
			})
		})
		if rows = locked; len(rows) > 0 && (time.Now().After(until) || rest(ctx, time.Duration(try)*time.Millisecond) != nil) {
			for _, renewals := range rows {
				fail(renewals, errLocked)
			}
			return
		}
	}
}

func fail(renewals []*driver.Renewal, err error) {
	for _, r := range renewals {
		r.Answer(r.Claim.(*claim).renewed(r.TTL, 0, false, err))
	}
}

// lockedOf returns the names whose rows exist and are locked.
func (d *Driver) lockedOf(ctx context.Context, names []string) (map[string]bool, error) {
	if d.texts.unlocked == "" || len(names) == 0 {
		return nil, nil
	}
	unlocked, err := d.unlocked(ctx, names)
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return unlocked[name] })
	if err != nil || len(names) == 0 {
		return nil, err
	}
	rows, err := d.look(ctx, d.texts.state, list(names...))
	locked := make(map[string]bool)
	for _, r := range rows {
		locked[r.name] = r.rev != 0 // 0: there is no row
	}
	return locked, err
}

// maxRows is how many rows of a batch are renewed at once: as many as the core renews single leases
// at once. Those that hang do not count.
const maxRows = 16

// mostRows limits how many rows are renewed at once, including those that hang. Each needs a
// connection, and a database that stalls must not get one for each lease.
const mostRows = 4 * maxRows

// slowRow is when a renewal by row counts as hanging: far above two round trips and a commit on a
// slow disk.
const slowRow = 200 * time.Millisecond

// renewRow renews the leases of one resource by one write. Separate writes would conflict.
func (d *Driver) renewRow(ctx context.Context, name string, renewals []*driver.Renewal) {
	fences, others, lost := make([]uint64, len(renewals)), make([]bool, len(renewals)), make([]error, len(renewals))
	err := d.change(ctx, name, func(r *row) (write bool) {
		for i, one := range renewals {
			c := one.Claim.(*claim)
			fences[i], lost[i] = r.Renew(r.now, c.req.Owner, one.TTL)
			if others[i] = c.req.Wanted != nil && r.Awaited(c.req.Owner); lost[i] == nil && c.recall != nil {
				r.listens(&c.req)
			}
			write = write || lost[i] == nil
		}
		return write
	})
	for i, one := range renewals {
		c := one.Claim.(*claim)
		c.lateWrite = c.lateWrite || err != nil
		one.Answer(c.renewed(one.TTL, int64(driver.NumberOf(fences[i])), others[i], cmp.Or(err, lost[i])))
	}
}

// A grantee is the holder of a lease.
type grantee struct{ name, owner string }

// lockedMeanwhile is how often a batch checks for locked rows, if another is locked after each
// check.
const lockedMeanwhile = 3

// A renewing is one call's part of a statement that renews leases.
type renewing struct {
	all    []request
	fences map[grantee]int64 // of the leases of all calls that were renewed
}

// renewCalls renews the leases of several calls. It is made again if its connection is dead, but
// only for callers that are still there: others may have renewed for less since.
func (d *Driver) renewCalls(ctx context.Context, _ string, calls iter.Seq[*renewing]) error {
	attempt, answer := d.doubt.calls().Begin(ctx)
	fences, err := d.renewLeases(attempt, together(calls))
	if again(ctx, answer, err) {
		fences, err = d.renewLeases(ctx, together(calls))
	}
	for call := range calls {
		call.fences = fences
	}
	return err
}

// together returns the renewals of several calls, one for each lease.
func together(calls iter.Seq[*renewing]) (all []request) {
	at := make(map[grantee]int) // index in all
	for call := range calls {
		for _, r := range call.all {
			g := grantee{r.Name, r.Owner}
			if i, twice := at[g]; twice { // by claims with the same owner, as after Resume
				all[i].TTL, all[i].Asks = max(all[i].TTL, r.TTL), max(all[i].Asks, r.Asks)
				continue
			}
			at[g], all = len(all), append(all, r)
		}
	}
	return all
}

// renewLeases returns the numbers of the leases that were renewed; told splits them.
func (d *Driver) renewLeases(ctx context.Context, all []request) (fences map[grantee]int64, err error) {
	if len(all) == 0 { // all callers have left, and nothing is sent: no answer
		return nil, context.Canceled
	}
	text, renewed, args := d.texts.renewAll, d.texts.renewed, []any{list(all...)}
	if slices.ContainsFunc(all, func(r request) bool { return r.Asks != asksNot }) {
		text, renewed = cmp.Or(d.texts.asking.renewAll, text), cmp.Or(d.texts.asking.renewed, renewed)
	}
	if renewed != "" {
		for try := 1; ; try++ {
			// Not every server's UPDATE skips locked rows. These were unlocked a moment ago.
			if all, err = d.ofUnlocked(ctx, all); len(all) == 0 {
				return nil, err
			}
			// A row that was locked since is skipped, and its lease may be live for less than its TTL.
			at, some, err := d.number(ctx, text, list(all...))
			if some {
				args = []any{list(all...), at}
				break
			} else if !errors.Is(err, ErrContended) || try == lockedMeanwhile {
				return nil, err
			}
		}
		text = renewed
	}
	on, err := d.ready(ctx)
	if err != nil {
		return nil, err
	}
	err = d.write(ctx, on, func(on runner) error {
		fences = make(map[grantee]int64)
		return each(ctx, on, readFence(fences), text, args...)
	})
	return fences, err
}

// ofUnlocked returns the renewals whose rows nobody has locked.
func (d *Driver) ofUnlocked(ctx context.Context, all []request) ([]request, error) {
	names := make([]string, len(all))
	for i, r := range all {
		names[i] = r.Name
	}
	unlocked, err := d.unlocked(ctx, names)
	return slices.DeleteFunc(slices.Clone(all), func(r request) bool { return !unlocked[r.Name] }), err
}

// unlocked returns the names whose rows nobody has locked.
func (d *Driver) unlocked(ctx context.Context, names []string) (map[string]bool, error) {
	found, err := d.readNames(ctx, d.texts.unlocked, list(names...))
	unlocked := make(map[string]bool, len(found))
	for _, name := range found {
		unlocked[name] = true
	}
	return unlocked, err
}

// readFence returns a function that adds a row of name, owner and fence to fences.
func readFence(fences map[grantee]int64) func(*sql.Rows) error {
	return func(rows *sql.Rows) error {
		var g grantee
		var fence int64
		err := rows.Scan(&g.name, &g.owner, &fence)
		fences[g] = fence
		return err
	}
}
