package sqllock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
	"github.com/leasehold-go/leasehold/internal/rehearsal"
)

// Check asks the database for its version, its settings that locks depend on, and the time. It
// also reports whether [Options.Listen] receives messages, within 3 s.
func (d *Driver) Check(ctx context.Context) (found []driver.Finding, err error) {
	if d.closed.Load() {
		return nil, driver.ErrClosed
	}
	err = d.retry(ctx, nil, func(runner) error {
		found, err = d.dialect.look(ctx, d.db)
		return err
	})
	if err != nil || d.watch.listener == nil { // without one, waiters are known to poll
		return found, err
	}
	f := driver.Finding{About: driver.AboutWaking, Text: "waiters are woken"}
	switch err := d.Listening(ctx); {
	case errors.Is(err, ErrDeaf):
		f = driver.Finding{About: driver.AboutWaking, Level: driver.Weak, Text: "waiters poll: " + err.Error(), Advice: "see the option listen of the URL"}
	case errors.Is(err, ErrNoSchema): // the channel that wakes waiters is created with the tables
		f = driver.Finding{About: driver.AboutWaking, Level: driver.Weak, Text: "not looked at: there are no lock tables yet"}
	case err != nil:
		return found, err
	}
	return append(found, f), nil
}

// errRehearsed makes the transaction of the rehearsal roll back.
var errRehearsed = errors.New("rehearsed")

// Rehearse runs the statements that acquire, renew and release a lock in a transaction, which it
// rolls back. Without tables it returns [ErrNoSchema], and also [ErrDenied] if the user may not
// create them.
func (d *Driver) Rehearse(ctx context.Context) error {
	switch _, err := d.ready(ctx); {
	case errors.Is(err, ErrNoSchema):
		return d.rehearseCreation(ctx, err)
	case err != nil:
		return err
	}
	err := d.inTx(ctx, func(tx *sql.Tx) error {
		name, owner := rehearsal.Name(), rand.Text()
		number, granted, err := d.dialect.number(ctx, tx, d.dialect.inside(d.texts.grant), name, owner, record.Micros(rehearsal.TTL), "")
		if err == nil && !granted {
			err = driver.ErrBusy
		}
		if err != nil {
			return fmt.Errorf("take a lock: %w", err)
		}
		if err := d.rehearseRenewal(ctx, tx, request{Name: name, Owner: owner, TTL: record.Micros(rehearsal.TTL)}); err != nil {
			return fmt.Errorf("renew a lock: %w", err)
		}
		if err := d.rehearsePlace(ctx, tx, name); err != nil {
			return fmt.Errorf("wait for a lock: %w", err)
		}
		freed, err := d.dialect.changed(ctx, tx, d.dialect.inside(d.texts.free), name, owner, int64(0), number)
		if err == nil && !freed {
			err = driver.ErrLost
		}
		if err != nil {
			return fmt.Errorf("release a lock: %w", err)
		}
		return errRehearsed
	})
	if errors.Is(err, errRehearsed) {
		return nil
	}
	return err
}

// rehearseCreation reports whether the user may create the missing tables.
func (d *Driver) rehearseCreation(ctx context.Context, missing error) error {
	may, known, err := d.dialect.creates(ctx, d.db)
	switch {
	case err != nil:
		return d.explain(ctx, err)
	case known && !may:
		return fmt.Errorf("%w, and may not create them: %w", ErrDenied, missing)
	case !known:
		return fmt.Errorf("whether the user may create the lock tables is not told: %w", missing)
	}
	return fmt.Errorf("the user may create the lock tables: %w", missing)
}

func (d *Driver) rehearsePlace(ctx context.Context, tx *sql.Tx, name string) error {
	owner, proc, life := rand.Text(), rand.Text(), record.Micros(rehearsal.TTL)
	place := []any{name, owner, proc, 0, 0, life, ""}
	for _, step := range []struct {
		text string
		args []any
	}{
		{d.texts.beat, []any{proc, life, 1}}, {d.texts.join, append(place, life, asksNot)}, {d.texts.insert, append(place, 0)},
		{d.texts.leave, []any{name, owner}}, {d.texts.unbeat, []any{proc}},
	} {
		if step.text == "" {
			continue
		}
		if _, err := d.dialect.changed(ctx, tx, d.dialect.inside(step.text), step.args...); err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) rehearseRenewal(ctx context.Context, tx *sql.Tx, r request) error {
	text, args := d.texts.renewAll, []any{list(r)}
	if d.texts.renewed != "" {
		at, _, err := d.dialect.number(ctx, tx, d.dialect.inside(text), args...)
		if err != nil {
			return err
		}
		text, args = d.texts.renewed, append(args, at)
	}
	fences := make(map[grantee]int64)
	err := each(ctx, tx, readFence(fences), d.dialect.inside(text), args...)
	if err == nil && len(fences) == 0 {
		err = driver.ErrLost
	}
	return err
}

// settings are a database's settings, by name in lower case.
type settings map[string]string

// readSettings reads rows of a name and a value.
func readSettings(ctx context.Context, db *sql.DB, text string) (settings, error) {
	s := settings{}
	err := each(ctx, db, func(rows *sql.Rows) error {
		var name string
		var value sql.NullString
		err := rows.Scan(&name, &value)
		s[strings.ToLower(name)] = value.String
		return err
	}, text)
	return s, err
}

// on reports whether a setting is switched on.
func (s settings) on(name string) bool { return s[name] == "1" || strings.EqualFold(s[name], "on") }

// isolation finds an isolation level under which transactions conflict needlessly.
func isolation(level string) driver.Finding {
	f := driver.Finding{About: driver.AboutIsolation, Text: "transactions are " + strings.ToUpper(strings.ReplaceAll(level, "-", " ")) + " by default"}
	if strings.EqualFold(level, "serializable") {
		f.Level, f.Advice = driver.Weak, "let the locks' user have READ COMMITTED"
		f.Text += ": those about different locks fail because of each other, and are repeated"
	}
	return f
}

// clock returns the database's time, from a query for the microseconds since 1970.
func clock(ctx context.Context, db *sql.DB, text string) (driver.Finding, error) {
	if err := db.PingContext(ctx); err != nil { // so that opening a connection takes nothing from the measurement
		return driver.Finding{}, err
	}
	var micros int64
	before := time.Now()
	err := db.QueryRowContext(ctx, text).Scan(&micros)
	return driver.ClockFinding("", before, time.UnixMicro(micros), time.Now()), err
}
