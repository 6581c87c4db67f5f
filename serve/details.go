package serve

import (
	"time"

	"github.com/leasehold-go/leasehold/internal/details"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// readNote is what a note says for people, and who has written it; nil: it is text alone.
func readNote(note string) (text string, d *wire.Details) {
	all := details.Of(note)
	text = all.Text
	all.Text = ""
	if all.IsZero() {
		return note, nil
	}
	d = &wire.Details{Host: all.Host, User: all.User, PID: all.PID, Program: all.Program, Link: all.Link, Labels: all.Labels, Text: text, Kind: all.Kind}
	if !all.Started.IsZero() {
		d.Started = all.Started.UTC().Format(time.RFC3339)
	}
	return details.Text(note), d
}
