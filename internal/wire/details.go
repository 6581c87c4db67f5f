package wire

import (
	"errors"

	"github.com/leasehold-go/leasehold/internal/details"
)

// Details describe a holder or a waiter.
type Details = details.Details

// IsLoss reports whether a lease expired that its holder renewed, or meant to renew. Others are meant
// to expire. d is nil if the holder gave no details.
func IsLoss(d *Details, held, silent *int64) bool {
	if d != nil {
		return d.Renews()
	}
	return held != nil && silent != nil && *held > *silent // it was renewed
}

// Said splits a note, as an engine keeps it, into its text for people and its details, or nil.
func Said(note string) (text string, of *Details) {
	d := details.Of(note)
	if d.Bare() {
		return d.Text, nil
	}
	return d.Shown(), &d
}

// Noted is the reverse of Said: it combines a text and details, which may be nil, into a note for
// an engine. If there are details, it puts the text into them.
func Noted(text string, of *Details) (string, error) {
	if of == nil {
		return text, nil
	}
	d := *of
	if d.Text == "" && text != d.Summary() {
		d.Text = text
	}
	if text != "" && d.Text != "" && text != d.Text {
		return "", errors.New("the note is another text than that of the details")
	}
	if err := d.Check(); err != nil {
		return "", err
	}
	return d.Note(), nil
}

// Shown is Noted for an answer of the service. It omits details that are invalid.
func Shown(text string, of *Details) string {
	note, err := Noted(text, of)
	if err != nil {
		return text
	}
	return note
}
