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

// A shown is what a Lease said at a resourceVersion, as far as its next change must know.
type shown struct {
	Number      uint64
	Identity    string // of the holder that the spec names
	Foreign     string `json:",omitempty"` // owner by which that one is known, if it is no claim of ours
	Beats       uint64 `json:",omitempty"` // of those who hold
	Renewed     int64  `json:",omitempty"` // second of the spec's renewTime
	Transitions int32  `json:",omitempty"`
}

// shownBy reverses version.
func shownBy(v caslock.Version) (s shown) {
	_ = json.Unmarshal([]byte(v), &s) // "" is nothing; all else is what version has made
	return s
}

func (s shown) version() caslock.Version {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // it has nothing that JSON cannot have
	}
	return caslock.Version(b)
}

// itemOf decodes a Lease. If the spec names a holder that our annotation does not, it is another
// program: for that program, the claims of the annotation were over.
func itemOf(name string, l *coordination.Lease) (caslock.Item, error) {
	i := caslock.Item{Name: name}
	number, err := numberOf(l)
	if err != nil {
		return i, err
	}
	text, annotated := l.Annotations[recordKey]
	r, err := record.Decode([]byte(text))
	if err != nil || annotated && r.Nonce == "" {
		i.Value, i.Version = []byte(text), shown{Number: number}.version() // for whoever decodes it to tell
		return i, nil
	}
	s := shown{
		Number: number, Identity: value(l.Spec.HolderIdentity), Beats: beats(&r), Transitions: value(l.Spec.LeaseTransitions),
		Renewed: value(l.Spec.RenewTime).Unix(),
	}
	if first := holding(&r); s.Identity != identity(first) {
		r.Claims = slices.DeleteFunc(r.Claims, holds)
		r.Nonce += "+" // it is not what we wrote
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
	sum := sha256.Sum256([]byte(string(l.UID) + " " + *l.Spec.HolderIdentity)) // nobody takes it for his own by mistake
	beat := fnv.New64a()
	fmt.Fprint(beat, *l.Spec.HolderIdentity, seconds, l.Spec.AcquireTime, l.Spec.RenewTime, value(l.Spec.LeaseTransitions))
	return record.Claim{
		Owner: small.EncodeToString(sum[:20]), Status: record.Holding, TTL: time.Duration(seconds) * time.Second, Beat: beat.Sum64() >> 11,
		Since: value(l.Spec.AcquireTime).UnixMicro(), Note: *l.Spec.HolderIdentity,
	}, nil
}

// foreign reports whether c belongs to a holder of another program.
func (s shown) foreign(c record.Claim) bool {
	return s.Foreign != "" && c.Owner == s.Foreign && holds(c)
}

// holds reports whether c keeps out every claim that does not share.
func holds(c record.Claim) bool { return c.Status == record.Holding || c.Status == record.Lingering }

// holding returns the first holder, or nil.
func holding(r *record.Record) *record.Claim {
	if i := slices.IndexFunc(r.Claims, holds); i >= 0 {
		return &r.Claims[i]
	}
	return nil
}

// beats returns a number that changes whenever somebody else holds, or a claim's time starts again.
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
	if len(mine.Claims) == len(r.Claims) { // else the spec is the other program's
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
// change, to the second. So whenever somebody's time starts again, renewTime gets a second that it
// never had for the same holder. The duration is the longest of all.
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
