package record

import (
	"encoding/json"
	"fmt"

	"github.com/leasehold-go/leasehold/driver"
)

// version is that of the encoding. A record of another version is left alone: it may hold
// what this one does not know of.
const version = 1

// stored is a record as it is encoded: JSON, so that a person can read it.
type stored struct {
	Version int     `json:"v"`
	Fence   uint64  `json:"fence,omitempty"`
	Raised  uint64  `json:"raised,omitempty"`
	Claims  []Claim `json:"claims,omitempty"`
	Nonce   string  `json:"nonce,omitempty"`
	Beside  Beside  `json:"beside,omitempty"` // one that does not know it passes those who wait there
}

// Encode encodes the record for a store.
func (r *Record) Encode() []byte {
	b, err := json.Marshal(stored{version, r.Fence, r.Raised, r.Claims, r.Nonce, r.Beside})
	if err != nil {
		panic(err) // it has nothing that JSON cannot have
	}
	return b
}

// Decode reverses Encode; an empty value is the zero Record. It returns driver.ErrCorrupt if the
// value is damaged, or has another version.
func Decode(b []byte) (Record, error) {
	if len(b) == 0 {
		return Record{}, nil
	}
	var s stored
	if err := json.Unmarshal(b, &s); err != nil {
		return Record{}, fmt.Errorf("%w: no record: %w", driver.ErrCorrupt, err)
	}
	if s.Version != version {
		return Record{}, fmt.Errorf("%w: a record of version %d, not %d", driver.ErrCorrupt, s.Version, version)
	}
	r := Record{s.Fence, s.Raised, s.Claims, s.Nonce, s.Beside}
	if r.Beside > Perhaps {
		return Record{}, fmt.Errorf("%w: nobody knows where others wait", driver.ErrCorrupt)
	}
	for i := range r.Claims {
		if !r.Claims[i].sound(r.Fence) {
			return Record{}, fmt.Errorf("%w: claim %d of the record makes no sense", driver.ErrCorrupt, i)
		}
	}
	return r, nil
}

// sound reports whether the claim can be one of a record whose last fence is last.
func (c *Claim) sound(last uint64) bool {
	return c.Status <= Gone && c.Mode <= driver.Shared && c.Limit >= 0 && c.TTL >= 0 && c.Wants >= 0 && c.Fence <= last &&
		(c.Owner == "") == (c.Status == Lingering) && (!c.Bars || c.Status == Gone)
}
