package record

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/leasehold-go/leasehold/driver"
)

// Versions of the encoding. A record of another version is refused, because it may have fields that
// this program does not know. The second version adds weights and a limit. A program that knows
// only the first would drop them. A record with neither is written in the first version, so that
// such programs can read it.
const plain, weighted = 1, 2

// stored is the encoded form of a record. It is JSON, so that people can read it.
type stored struct {
	Version int `json:"v"`
	Record
}

// Encode encodes the record for a store.
func (r *Record) Encode() []byte {
	b, err := json.Marshal(stored{r.version(), *r})
	if err != nil {
		panic(err) // impossible: JSON can express all fields
	}
	return b
}

// version returns the least version that can express the record.
func (r *Record) version() int {
	if r.Limit > 0 || slices.ContainsFunc(r.Claims, func(c Claim) bool { return c.Weight > 1 }) {
		return weighted
	}
	return plain
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
	if s.Version != plain && s.Version != weighted {
		return Record{}, fmt.Errorf("%w: a record of version %d, not %d or %d", driver.ErrCorrupt, s.Version, plain, weighted)
	}
	r := s.Record
	if r.Limit < 0 || r.Limit > driver.MaxWeight {
		return Record{}, fmt.Errorf("%w: a limit of %d", driver.ErrCorrupt, r.Limit)
	}
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

// sound reports whether the claim is valid in a record whose last number is last.
func (c *Claim) sound(last uint64) bool {
	return c.Status <= Gone && c.Mode <= driver.Shared && c.Limit >= 0 && c.Weight >= 0 && c.Weight <= driver.MaxWeight && c.TTL >= 0 && c.Wants >= 0 && c.Fence <= last &&
		(c.Owner == "") == (c.Status == Lingering) && (!c.Bars || c.Status == Gone)
}
