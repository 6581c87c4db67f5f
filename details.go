package leasehold

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/details"
)

// Details say who holds a resource or waits for it, and why. They are for people, and nothing
// verifies them. Engines keep them together, in at most [driver.MaxNote] bytes.
type Details struct {
	Host    string            // name of the machine
	User    string            // user of the program, or the person who holds the lease
	PID     int               // process id on Host; 0: unknown
	Program string            // name of the program
	Started time.Time         // when the program started, by its own clock, in whole seconds; zero: unknown
	Link    string            // http or https URL with more information, such as the log of a build; without a password
	Labels  map[string]string // anything else
	Text    string            // a line of free text, see [Note]
	Kind    string            // "", or one of the Holder constants

	// Preference is a candidate's preference for leadership, see the option of the same name. Most
	// candidates have 0.
	Preference int
}

// Values of Details.Kind. Treat any other value as "".
const (
	// HolderManual is a lease that is, by design, not renewed. It is the default with [NoRenew].
	HolderManual = details.Manual
	// HolderOnce keeps a resource after a finished job, as with [OncePer]. The label "exit" is
	// the job's exit code, if it is known.
	HolderOnce = details.Once
	// HolderKeeps is a lease whose process may keep it after its release, see [Options.Keep].
	// Whether it is in use cannot be seen.
	HolderKeeps = details.Keeps
	// HolderReserved is a resource that a person has reserved.
	HolderReserved = details.Reserved
)

// String is for people. Text from others is quoted, so that it cannot control a terminal.
func (d Details) String() string {
	return fmt.Sprintf("{Host:%q User:%q PID:%d Program:%q Started:%v Link:%q Labels:%q Text:%q Kind:%q Preference:%d}",
		d.Host, d.User, d.PID, d.Program, d.Started, d.Link, d.Labels, d.Text, d.Kind, d.Preference)
}

// GoString returns String with the type's name.
func (d Details) GoString() string { return "leasehold.Details" + d.String() }

// LogValue implements slog.LogValuer.
func (d Details) LogValue() slog.Value { return slog.StringValue(d.String()) }

// WithDetails sets the details of this lease. Fields that are zero keep the values of
// [Options.Details], or else their defaults, and labels are added to those. Details that an
// engine cannot keep, or whose Link is no URL, are [ErrInvalidOption]. After a hand-over inside
// the process they are shown a little later: see [Options.HandOver].
func WithDetails(d Details) Option {
	return func(r *request) {
		said := r.ownDetails()
		*said = details.Details(d).Or(*said)
	}
}

// Details returns the details of the holder. If the engine keeps only a plain text, that is their
// Text.
func (h Holder) Details() Details { return detailsOf(h.note, h.Note) }

// Details returns the details of the waiter. If the engine keeps only a plain text, that is their
// Text.
func (w Waiter) Details() Details { return detailsOf(w.note, w.Note) }

// detailsOf parses a note as an engine keeps it. Without one, it parses the note that was shown.
func detailsOf(note, shown string) Details {
	return Details(details.Of(cmp.Or(note, shown)))
}

// SetDetails changes the details shown to people who ask who holds the resource. Fields that
// are zero stay as they are, and labels are added to those that are there. It returns what
// [Lease.SetNote] returns.
func (le *Lease) SetDetails(ctx context.Context, d Details) error {
	return le.wrap("details", le.setNote(ctx, func(said *details.Details) { *said = details.Details(d).Or(*said) }))
}

// A description is what a lease publishes about its holder. It is immutable.
type description struct {
	said   details.Details
	filled details.Details // defaults for zero fields of said, as far as there is room
	note   string          // said and filled, in the form that engines keep
}

func newDescription(said, filled details.Details) (*description, error) {
	said.Labels = maps.Clone(said.Labels)        // the map is the caller's
	if said.PID != 0 && said.PID != filled.PID { // the details describe another process
		filled.Program, filled.Started = "", time.Time{}
	}
	note := details.Fit(said, filled)
	if err := cmp.Or(said.Check(), driver.CheckNote(note)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidOption, err)
	}
	return &description{said, filled, note}, nil
}

// withoutKind returns d without its kind.
func (d *description) withoutKind() *description {
	said := d.said
	said.Kind = ""
	plain, _ := newDescription(said, d.filled) // valid, because d is, and shorter
	return plain
}

// same reports whether d and o have the same note. It is false if o is nil, which means unknown.
func (d *description) same(o *description) bool {
	return d == o || o != nil && d.note == o.note
}

// description returns the description of leases whose calls give no details.
func (o *Options) description() (*description, error) {
	said := details.Details(o.Details)
	if o.Note != "" && said.Text != "" && o.Note != said.Text {
		return nil, fmt.Errorf("%w: Note and Details.Text differ", ErrInvalidOption)
	}
	said.Text = cmp.Or(o.Note, said.Text)
	return newDescription(said, details.Mine())
}

// ownDetails returns the details of this call, for options to change.
func (r *request) ownDetails() *details.Details {
	if r.said == nil {
		said := r.who.said
		r.said = &said
	}
	return r.said
}

// describe makes the description of a call that gives details of its own, is not renewed, or may be
// kept.
func (r *request) describe(l *Locker) (err error) {
	switch {
	case r.said != nil:
		r.keeps = r.keeps && keepsKind(r.said)
	case r.keeps && l.whoKeeps != nil:
		r.who = l.whoKeeps
		return nil
	case !r.noRenew:
		r.keeps = false
		return nil
	}
	filled := r.who.filled
	if r.noRenew {
		filled.Kind = HolderManual
	}
	r.who, err = newDescription(*r.ownDetails(), filled)
	return err
}
