package kubelock

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A shown is what a Lease said at a resourceVersion, as far as the next change needs it.
type shown struct {
	Number      uint64
	Identity    string // the holder in the spec
	Foreign     string `json:",omitempty"` // the owner that stands for that holder, if it is another program's
	Beats       uint64 `json:",omitempty"` // see beats
	Renewed     int64  `json:",omitempty"` // the spec's renewTime in seconds
	Transitions int32  `json:",omitempty"`
}

// shownBy reverses version.
func shownBy(v caslock.Version) (s shown) {
	_ = json.Unmarshal([]byte(v), &s) // "" is empty; everything else was made by version
	return s
}

func (s shown) version() caslock.Version {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // all its fields can be encoded
	}
	return caslock.Version(b)
}

// itemOf decodes a Lease. A holder in the spec that our annotation does not name belongs to another
// program. To take the Lease, that program must have found the annotation's claims over.
func itemOf(name string, l *coordination.Lease) (caslock.Item, error) {
	i := caslock.Item{Name: name}
	number, err := numberOf(l)
	if err != nil {
		return i, err
	}
	text, annotated := l.Annotations[recordKey]
	r, err := record.Decode([]byte(text))
	if err != nil || annotated && r.Nonce == "" {
		i.Value, i.Version = []byte(text), shown{Number: number}.version() // decoding it then reports the damage
		return i, nil
	}
	s := shown{
		Number: number, Identity: value(l.Spec.HolderIdentity), Beats: beats(&r), Transitions: value(l.Spec.LeaseTransitions),
		Renewed: value(l.Spec.RenewTime).Unix(),
	}
	if first := holding(&r); s.Identity != identity(first) {
		r.Claims = slices.DeleteFunc(r.Claims, holds)
		r.Nonce += "+" // so that its nonce differs from the one we wrote
		if s.Identity != "" {
			c, err := claimOf(l)
			if err != nil {
				return i, err
			}
			s.Foreign, r.Claims = c.Owner, slices.Insert(r.Claims, 0, c)
		}
	}
	if i.Version = s.version(); annotated || s.Foreign != "" {
		i.Value = r.Encode()
	}
	return i, nil
}

// claimOf returns the claim of the holder in the spec, by the rules of leader election: it is over
// when the spec has not changed for its duration.
func claimOf(l *coordination.Lease) (record.Claim, error) {
	seconds := value(l.Spec.LeaseDurationSeconds)
	if seconds <= 0 {
		return record.Claim{}, fmt.Errorf("kubelock: %w: the Lease has a holder and no duration", driver.ErrCorrupt)
	}
	sum := sha256.Sum256([]byte(string(l.UID) + " " + *l.Spec.HolderIdentity)) // so that no claim mistakes it for its own owner
	acquired := value(l.Spec.AcquireTime)
	if acquired.IsZero() { // the field is optional
		acquired = value(l.Spec.RenewTime)
	}
	beat := fnv.New64a()
	fmt.Fprint(beat, *l.Spec.HolderIdentity, seconds, l.Spec.AcquireTime, l.Spec.RenewTime, value(l.Spec.LeaseTransitions))
	return record.Claim{
		Owner: small.EncodeToString(sum[:20]), Status: record.Holding, TTL: time.Duration(seconds) * time.Second, Beat: beat.Sum64() >> 11,
		Since: acquired.UnixMicro(), Note: *l.Spec.HolderIdentity,
	}, nil
}

// foreign reports whether c belongs to a holder of another program.
func (s shown) foreign(c record.Claim) bool {
	return s.Foreign != "" && c.Owner == s.Foreign && holds(c)
}

// holds reports whether c excludes every claim that is not shared.
func holds(c record.Claim) bool { return c.Status == record.Holding || c.Status == record.Lingering }

// holding returns the first holder, or nil.
func holding(r *record.Record) *record.Claim {
	if i := slices.IndexFunc(r.Claims, holds); i >= 0 {
		return &r.Claims[i]
	}
	return nil
}

// beats returns a number that changes whenever another holds, or the time of a claim restarts.
func beats(r *record.Record) (sum uint64) {
	for _, c := range r.Claims {
		if holds(c) {
			sum += c.Beat
		}
	}
	return sum
}

// identity returns the name of a holder in the spec: a unique part, and its note.
func identity(c *record.Claim) string {
	if c == nil {
		return ""
	}
	note := strings.ToValidUTF8(c.Note[:min(len(c.Note), 200)], "")
	return strings.TrimSpace(cmp.Or(driver.ShortOwner(c.Owner), "lingers") + " " + note)
}

// same reports whether two identities belong to one claim.
func same(a, b string) bool {
	a, _, _ = strings.Cut(a, " ")
	b, _, _ = strings.Cut(b, " ")
	return a == b
}

// change returns the merge patch that turns a Lease that said s into one that says r.
func (s shown) change(name string, r *record.Record, now time.Time) map[string]any {
	mine, change := *r, map[string]any{}
	mine.Claims = slices.DeleteFunc(slices.Clone(r.Claims), s.foreign)
	if len(mine.Claims) == len(r.Claims) { // otherwise the spec is the other program's
		change["spec"] = s.spec(&mine, now)
	}
	notes := map[string]any{nameKey: name, recordKey: nil}
	if r.Nonce != "" {
		notes[recordKey] = string(mine.Encode())
	}
	change["metadata"] = map[string]any{"resourceVersion": strconv.FormatUint(s.Number, 10), "annotations": notes}
	return change
}

// spec returns the changes of the spec. Leader election counts from when it last saw the spec
// change, by the second. So whenever the time of a claim restarts, renewTime gets a second that it
// never had for the same holder. The duration is the longest of all holders.
func (s shown) spec(r *record.Record, now time.Time) map[string]any {
	first := holding(r)
	spec := map[string]any{"holderIdentity": identity(first)}
	if first == nil {
		spec["acquireTime"] = nil
		return spec
	}
	if !same(spec["holderIdentity"].(string), s.Identity) {
		spec["leaseTransitions"] = min(s.Transitions, math.MaxInt32-1) + 1
	} else if beats(r) == s.Beats {
		return spec
	} else if now.Unix() <= s.Renewed {
		now = time.Unix(s.Renewed+1, 0)
	}
	var longest time.Duration
	for _, c := range r.Claims {
		if holds(c) {
			longest = max(longest, c.TTL)
		}
	}
	spec["leaseDurationSeconds"] = min(int64((longest+time.Second-1)/time.Second), math.MaxInt32)
	spec["acquireTime"], spec["renewTime"] = meta.NewMicroTime(time.UnixMicro(first.Since)), meta.NewMicroTime(now)
	return spec
}

// value returns what p points to, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
