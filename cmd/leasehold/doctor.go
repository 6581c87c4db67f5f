package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/rehearsal"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

const doctorLong = `Check whether the store is suitable for locks. Each finding is ok, a warning or an
error, with advice. Exit codes: 0 all is ok, 1 there are warnings, 69 there are
errors, 64 wrong usage. It disturbs no lock.

# Findings
  store        which store it is, without its password, and what named it
  reach        whether it answers
  promises     what its locks have, such as fencing tokens
  version      the server's, and its known defects that end leases
  persistence, eviction, replicas, quorum, isolation, space, file, waking
               how it is configured, as far as this user may see
  clock        how far its clock is from this machine's
  round trip   how long it takes to answer: the median of several, and the worst
  rights       whether this user can take, renew and release a lock

# What it touches
It reads nobody's locks. It takes one with a name of its own, "leasehold-doctor/" and 26
letters, and releases it. On S3 one object for tests of conditions stays. It creates no file, no tables and no bucket: if they
are missing and leasehold itself would create them, that is a warning. A database
without tables is checked all the same, and "rights" then says whether this user can
create them.

# Time limits
A store that hangs gets 4 s for each step: the first contact, the check itself, the
round trips and the lock; and one second to close. If the check succeeds after a
failed contact, the contact is tried again.`

func newDoctorCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "doctor [flags]",
		Short:             "Check whether a store is suitable for locks",
		Long:              doctorLong,
		Example:           "  leasehold doctor\n  leasehold --store redis://host/0 doctor\n  leasehold doctor --json | jq -r '.findings[] | select(.level != \"ok\").text'",
		Args:              argNames(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return (&doctor{app: a}).run(cmd.Context())
		},
	}
}

// Values of Finding.About for checks that doctor makes itself.
const (
	aboutStore    = "store"
	aboutReach    = "reach"
	aboutPromises = "promises"
	aboutTrip     = "round trip"
	aboutRights   = "rights"
)

// stepBound limits how long a store may take for one step of an examination.
const stepBound = 4 * time.Second

// trips is the number of round trips that are timed, over a connection that was made before.
const trips = 9

// A doctor examines one store.
type doctor struct {
	app   *app
	store setting
	found []driver.Finding
}

// A doctorView is the output of "leasehold doctor --json".
type doctorView struct {
	Store    string        `json:"store" about:"URL of the store, without the password"`
	From     string        `json:"from" about:"where the URL comes from: a flag, a variable, a file, or default"`
	Level    string        `json:"level" enum:"ok,warning,error" about:"the worst level of all findings"`
	Findings []findingView `json:"findings"`
}

// A findingView is one finding in a doctorView.
type findingView struct {
	About  string `json:"about" about:"what was checked"`
	Where  string `json:"where,omitempty" about:"the server, if there can be several"`
	Level  string `json:"level" enum:"ok,warning,error"`
	Text   string `json:"text" about:"what was found, for people to read"`
	Advice string `json:"advice,omitempty" about:"what to do, for people to read"`
}

func (d *doctor) run(ctx context.Context) error {
	ctx, stop := interruptible(ctx)
	defer stop()
	var err error
	if d.store, err = d.app.chosenStore(); err != nil {
		return err
	}
	if d.store.from == "" {
		d.store.from = "default"
	}
	if err := d.examine(ctx); err != nil {
		return err
	}
	if stopped := signalIn(ctx); stopped != nil {
		return stopped
	}
	return d.print()
}

// examine makes one check after another, and stops if one fails that all others need. It returns an
// error only for a wrong URL.
func (d *doctor) examine(ctx context.Context) error {
	verbose := d.app.verbose
	d.app.verbose = false // the findings say all that -v would
	defer func() { d.app.verbose = verbose }()
	var err error
	switch d.app.storeURL, err = stores.Resolve(d.store.value); {
	case errors.Is(err, stores.ErrURL):
		return wrongURL(err, d.store)
	case err != nil: // for example, there is no home directory
		d.add(driver.Finding{About: aboutStore, Level: driver.Unfit, Text: err.Error(), Advice: "set --store or LEASEHOLD_STORE"})
		return nil
	}
	if d.missingFile() {
		return nil
	}
	opening, cancel := context.WithTimeoutCause(ctx, stepBound, errSilent)
	defer cancel()
	began := time.Now()
	opened, err := d.app.openURL(opening, d.open, d.store)
	if errors.Is(err, stores.ErrURL) {
		return err
	}
	d.lookAtStore()
	if err != nil {
		d.add(d.unreached(err))
		return nil
	}
	defer abandon.Within(time.Second, func() { d.app.close(opened) })
	reached, err := d.reach(ctx, opened, began)
	found, checked := check(ctx, opened)
	if err != nil && checked == nil { // a leader may have been elected meanwhile
		reached, err = d.reachAgain(ctx, opened, began)
	}
	d.add(reached)
	if err != nil {
		d.add(found...)
		return nil
	}
	d.add(promises(opened.Features()))
	d.add(found...)
	if checked != nil {
		d.add(driver.Finding{About: driver.AboutServer, Level: driver.Weak, Text: "some checks could not be made: " + bare(checked)})
	}
	d.timeTrips(ctx, opened)
	d.rehearse(ctx, opened)
	return nil
}

// open opens a store without changing it. Even a database without tables can be checked.
func (d *doctor) open(ctx context.Context, url string) (driver.Driver, error) {
	opened, err := stores.OpenToLook(ctx, url)
	if opened != nil && stores.NoTables(err) {
		return opened, nil
	}
	return opened, err
}

// unmade returns the finding for a store in which nothing was ever locked.
func unmade(err error) driver.Finding {
	return driver.Finding{About: aboutReach, Level: driver.Weak, Text: bare(err),
		Advice: "the first command that takes a lock creates what is missing, if it may"}
}

var errSilent = errors.New("no answer within " + stepBound.String())

// bare returns the text of err in one line.
func bare(err error) string { return strings.ReplaceAll(textOf(err), "\n", "; ") }

func (d *doctor) add(f ...driver.Finding) { d.found = append(d.found, f...) }

// missingFile reports a SQLite file that does not exist. It does not create the file.
func (d *doctor) missingFile() bool {
	path, ok := strings.CutPrefix(d.app.storeURL, "sqlite:")
	if _, err := os.Stat(path); !ok || !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	d.lookAtStore()
	f := driver.Finding{About: aboutReach, Level: driver.Weak, Text: path + " does not exist yet",
		Advice: "the first command that takes a lock creates it; nothing else was checked"}
	if _, err := os.Stat(filepath.Dir(path)); err != nil && d.store.from != "default" {
		f.Level, f.Text, f.Advice = driver.Unfit, bare(err), "create the folder"
	}
	d.add(f)
	return true
}

func (d *doctor) lookAtStore() {
	f := driver.Finding{About: aboutStore, Text: fmt.Sprintf("%s (%s)", stores.WithoutPassword(d.app.storeURL), d.store.from)}
	switch {
	case d.store.from == "default":
		f.Text += ": only your own processes on this machine exclude each other"
	case d.store.from == "--"+keyStore && stores.HasPassword(d.store.value):
		f.Level, f.Advice = driver.Weak, "keep the password in a file that ?password_file= names, or in LEASEHOLD_PASSWORD"
		f.Text += ": everybody on this machine can read its password in the list of processes"
	}
	d.add(f)
}

// within makes one step. It returns in time even if the store does not answer.
func within[T any](ctx context.Context, step func(ctx context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stepBound, errSilent)
	defer cancel()
	terms := abandon.Terms[T]{Grace: stepBound / 20} // time to return what was found until then
	found, err := terms.Call(ctx, func() (T, error) { return step(ctx) })
	if err != nil && err == ctx.Err() {
		err = context.Cause(ctx)
	}
	return found, err
}

// only adapts a step that has no result.
func only(step func(ctx context.Context) error) func(ctx context.Context) (struct{}, error) {
	return func(ctx context.Context) (struct{}, error) { return struct{}{}, step(ctx) }
}

// reach makes the first call to the store. Some drivers connect only then.
func (d *doctor) reach(ctx context.Context, opened driver.Driver, began time.Time) (driver.Finding, error) {
	_, err := within(ctx, only(func(ctx context.Context) error { return askOnce(ctx, opened) }))
	switch {
	case errors.Is(err, stores.ErrNoBucket):
		f := unmade(err)
		f.Advice += "; nothing else was checked"
		return f, err
	case stores.NoTables(err):
		return unmade(stores.ErrNoTables), nil
	case err != nil:
		return d.unreached(err), err
	}
	return driver.Finding{About: aboutReach, Text: "it answers, " + spanText(time.Since(began)) + " after the first attempt to connect"}, nil
}

// reachAgain calls a store once more that did not answer the first call, although its check
// succeeded.
func (d *doctor) reachAgain(ctx context.Context, opened driver.Driver, began time.Time) (driver.Finding, error) {
	f, err := d.reach(ctx, opened, began)
	if err == nil {
		f.Level, f.Advice = driver.Weak, "look at the servers' load and disks, and whether they have just elected a leader"
		f.Text += ": leases that are to be renewed in such a time are lost"
	}
	return f, err
}

// askOnce makes one call to the engine, about a name that nobody uses.
func askOnce(ctx context.Context, opened driver.Driver) error {
	name := rehearsal.Name()
	if operator, ok := opened.(driver.Operator); ok {
		_, err := operator.Inspect(ctx, name)
		if errors.Is(err, httplock.ErrDenied) { // by a service that knows us: it has told us its features
			return nil
		}
		return err
	}
	claim, err := opened.Claim(driver.Request{Resource: name, Owner: name, TTL: rehearsal.TTL})
	if err != nil {
		return err
	}
	err = claim.Release(ctx, driver.End{})
	if errors.Is(err, leasehold.ErrLost) { // as expected: there was nothing to release
		return nil
	}
	return err
}

func promises(f driver.Features) driver.Finding {
	names := []string{}
	for _, p := range []struct {
		has  bool
		text string
	}{
		{f.Fencing, "fencing tokens"}, {f.Shared, "shared locks"}, {f.Fair, "fair waiting"}, {f.Wakes, "waiters are notified"}, {f.Resumes, "leases that outlive their process"},
	} {
		if !p.has {
			p.text = "no " + p.text
		}
		names = append(names, p.text)
	}
	text := strings.ReplaceAll(strings.Join(names, ", "), "no waiters are notified", "waiters poll")
	return driver.Finding{About: aboutPromises, Text: text}
}

// check asks the driver for its findings. Some of several servers may answer even if the one that
// was asked first does not.
func check(ctx context.Context, opened driver.Driver) ([]driver.Finding, error) {
	checker, ok := opened.(driver.Checker)
	if !ok {
		return nil, nil
	}
	return within(ctx, checker.Check)
}

func (d *doctor) timeTrips(ctx context.Context, opened driver.Driver) {
	took, err := within(ctx, func(ctx context.Context) (took []time.Duration, err error) {
		for range trips {
			began := time.Now()
			if err := askOnce(ctx, opened); err != nil && !stores.NoTables(err) {
				return nil, err
			}
			took = append(took, time.Since(began))
		}
		return took, nil
	})
	if err != nil {
		d.add(driver.Finding{About: aboutTrip, Level: driver.Unfit, Text: bare(err)})
		return
	}
	slices.Sort(took)
	median, worst := took[len(took)/2], took[len(took)-1]
	f := driver.Finding{About: aboutTrip, Text: fmt.Sprintf("median %s, worst %s of %d", tripText(median), tripText(worst), trips)}
	if worst > slowTrip {
		f.Level, f.Advice = driver.Weak, "check the network and the server's load, or use longer leases (--ttl)"
		f.Text += ": renewals of short leases may come too late"
	}
	d.add(f)
}

// slowTrip is the longest round trip that is not slow. The shortest lease of "leasehold run" is a
// tenth of the default TTL. Two renewals are sent before it ends, and each may take a quarter of
// it.
const slowTrip = leasehold.DefaultTTL / 40

func tripText(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }

func (d *doctor) rehearse(ctx context.Context, opened driver.Driver) {
	checker, ok := opened.(driver.Checker)
	if !ok {
		return
	}
	// A service may have no right to rehearse, or not on all names.
	behind := strings.HasPrefix(d.app.storeURL, "http")
	switch _, err := within(ctx, only(checker.Rehearse)); {
	case behind && (errors.Is(err, driver.ErrUnsupported) || errors.Is(err, httplock.ErrDenied)):
		d.add(driver.Finding{About: aboutRights, Text: "not tried: " + bare(err)})
	case stores.NoTables(err) && !errors.Is(err, driver.ErrDenied):
		text, _, _ := strings.Cut(bare(err), ": ") // an earlier finding said that they are missing
		d.add(driver.Finding{About: aboutRights, Text: text})
	case errors.Is(err, driver.ErrNotYet):
		d.add(driver.Finding{About: aboutRights, Level: driver.Weak, Text: bare(err), Advice: "wait: the servers grant nothing until leases that they may have forgotten are over"})
	case err != nil:
		d.add(driver.Finding{About: aboutRights, Level: driver.Unfit, Text: "locks cannot be taken here: " + bare(err), Advice: "fix that; the engine's page in docs/engines lists the rights that locks need"})
	default:
		d.add(driver.Finding{About: aboutRights, Text: "can take, renew and release locks"})
	}
}

// print writes the findings, and returns the exit code of the worst one.
func (d *doctor) print() error {
	v := doctorView{Store: stores.WithoutPassword(d.app.storeURL), From: d.store.from}
	worst := driver.Fine
	for _, f := range d.found {
		worst = max(worst, f.Level)
		v.Findings = append(v.Findings, findingView{f.About, plain(f.Where), f.Level.String(), plain(f.Text), plain(f.Advice)})
	}
	v.Level = worst.String()
	err := d.app.print(v, func(w io.Writer) { writeFindings(w, v.Findings, widthOf(d.app.stdout)) })
	switch {
	case err != nil:
		return err
	case worst == driver.Weak:
		return &exitError{code: exitBusy}
	case worst == driver.Unfit:
		return &exitError{code: exitUnavailable}
	}
	return nil
}

// writeFindings writes the findings in three columns. The last one is folded to the width of a
// terminal; 0 means that it is not.
func writeFindings(w io.Writer, findings []findingView, width int) {
	first, second := 0, 0
	for _, f := range findings {
		first, second = max(first, len(f.Level)), max(second, len(f.About))
	}
	column := first + gap + second + gap
	if width-column < leastRoom {
		width = math.MaxInt
	}
	for _, f := range findings {
		text := f.Text
		if f.Where != "" {
			text = f.Where + ": " + text
		}
		fmt.Fprintln(w, hanging(fmt.Sprintf("%-*s%s", first+gap, f.Level, f.About), column, text, width))
		if f.Advice != "" {
			fmt.Fprintln(w, hanging(strings.Repeat(" ", column)+"→", column+gap, f.Advice, width))
		}
	}
}

// leastRoom is the narrowest column to which text is folded.
const leastRoom = 20
