package wire

import (
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/details"
)

// Details describe a holder or a waiter.
type Details struct {
	Host    string            `json:"host,omitempty"`
	User    string            `json:"user,omitempty"`
	PID     int               `json:"pid,omitempty"`
	Program string            `json:"program,omitempty"`
	Started string            `json:"started,omitempty"` // RFC 3339
	Link    string            `json:"link,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Text    string            `json:"text,omitempty"`
	Kind    string            `json:"kind,omitempty"`

	Preference int `json:"preference,omitempty"` // of a candidate for leadership
}

// Renews reports whether a lease of that kind is meant to be renewed.
func (d *Details) Renews() bool { return d.Kind == "" || d.Kind == details.Keeps }

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
	return d.Shown(), &Details{
		Host: d.Host, User: d.User, PID: d.PID, Program: d.Program, Started: instant(d.Started), Link: d.Link,
		Labels: d.Labels, Text: d.Text, Kind: d.Kind, Preference: d.Preference,
	}
}

func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// Noted is the reverse of Said: it combines a text and details, which may be nil, into a note for
// an engine. If there are details, it puts the text into them.
func Noted(text string, of *Details) (string, error) {
	if of == nil {
		return text, nil
	}
	d := details.Details{Host: of.Host, User: of.User, PID: of.PID, Program: of.Program, Link: of.Link, Labels: of.Labels, Text: of.Text, Kind: of.Kind, Preference: of.Preference}
	if of.Started != "" {
		started, err := time.Parse(time.RFC3339, of.Started)
		if err != nil {
			return "", fmt.Errorf("details: started is no instant of RFC 3339")
		}
		d.Started = started
	}
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
