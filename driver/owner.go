package driver

import (
	"fmt"
	"log/slog"
	"unique"
)

// An Owner identifies a holder or waiter. Anyone who knows it whole can release the lease. So it
// prints, logs and marshals as its [ShortOwner], with every verb. Where fmt cannot call its
// methods, it prints an address. Owners are equal if they identify the same claim. The zero
// Owner is nobody.
type Owner struct {
	whole unique.Handle[string]
	shown bool
}

// OwnerOf returns the Owner whose Reveal is owner.
func OwnerOf(owner string) Owner {
	if owner == "" {
		return Owner{}
	}
	return Owner{whole: unique.Make(owner)}
}

// ShownOwner returns an Owner that is known only by the text that others see in place of it, such
// as a handle of the service. Reveal returns that text, which releases nothing. The result does not
// equal the whole Owner of the claim.
func ShownOwner(text string) Owner {
	o := OwnerOf(text)
	o.shown = text != ""
	return o
}

// IsShown reports whether o is from [ShownOwner].
func (o Owner) IsShown() bool { return o.shown }

// Reveal returns the whole owner, or the text given to [ShownOwner].
func (o Owner) Reveal() string {
	if o == (Owner{}) {
		return ""
	}
	return o.whole.Value()
}

// String returns the [ShortOwner].
func (o Owner) String() string { return ShortOwner(o.Reveal()) }

// Format implements fmt.Formatter.
func (o Owner) Format(f fmt.State, verb rune) { fmt.Fprintf(f, fmt.FormatString(f, verb), o.String()) }

// MarshalText implements encoding.TextMarshaler.
func (o Owner) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// LogValue implements slog.LogValuer.
func (o Owner) LogValue() slog.Value { return slog.StringValue(o.String()) }
