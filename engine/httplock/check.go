package httplock

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// Check implements driver.Checker. It returns what the service finds about its engine, if the
// caller may know.
func (d *service) Check(ctx context.Context) ([]driver.Finding, error) {
	var all wire.Findings
	err := d.get(ctx, wire.Check, nil, &all)
	if r, ok := errors.AsType[*reply](err); ok && r.Outcome == wire.Refused {
		text := "the service does not tell this client of its store: " + r.Answer.Error
		return []driver.Finding{{About: driver.AboutServer, Text: text}}, nil
	}
	if err == nil && all.Findings == nil {
		err = errAlien
	}
	if err != nil {
		return nil, err
	}
	var found []driver.Finding
	for _, f := range all.Findings {
		found = append(found, driver.Finding{About: f.About, Where: f.Where, Level: levelOf(f.Level), Text: f.Text, Advice: f.Advice})
	}
	if all.Failed != "" {
		err = fmt.Errorf("the service: %s", all.Failed)
	}
	return found, err
}

// levelOf returns the level of a word. An unknown word is a warning at least.
func levelOf(word string) driver.Level {
	switch word {
	case driver.Fine.String():
		return driver.Fine
	case driver.Unfit.String():
		return driver.Unfit
	}
	return driver.Weak
}

// Rehearse implements driver.Checker. The service rehearses; ErrUnsupported means that it cannot.
func (d *service) Rehearse(ctx context.Context) error {
	err := d.post(ctx, d.links.WatchLate, wire.Rehearse, struct{}{}, &done{})
	if r, ok := errors.AsType[*reply](err); ok && r.Code == wire.CodeNotFound {
		return fmt.Errorf("%w: the service is of an older version", driver.ErrUnsupported)
	}
	return err
}
