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

// A shown is what a Lease said when it had a resourceVersion: as much as the next change of it must
// know.
type shown struct {
	Number      uint64
	Identity    string // of the holder that the spec names
	Foreign     string `json:",omitempty"` // owner by which that one is known, if it is no claim of ours
	Beats       uint64 `json:",omitempty"` // of those who hold
	Renewed     int64  `json:",omitempty"` // second of the spec's renewTime
	Transitions int32  `json:",omitempty"`
}

// shownBy is the reverse of version.
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

// itemOf is what a Lease says. Who holds it by the spec and not by our annotation is another program:
// what held by the annotation was over for that one.
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

// claimOf is the claim of the holder that the spec names, as leader election keeps it: it is over when
// the spec was seen unchanged for its duration.
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

// foreign reports whether c is the claim of the holder that is none of ours.
func (s shown) foreign(c record.Claim) bool {
	return s.Foreign != "" && c.Owner == s.Foreign && holds(c)
}

// holds reports whether nobody may be granted beside a claim who does not share it.
func holds(c record.Claim) bool { return c.Status == record.Holding || c.Status == record.Lingering }

// holding is the first who holds, or nil.
func holding(r *record.Record) *record.Claim {
	if i := slices.IndexFunc(r.Claims, holds); i >= 0 {
		return &r.Claims[i]
	}
	return nil
}

// beats is another number whenever somebody else holds, or a claim's time has started again.
func beats(r *record.Record) (sum uint64) {
	for _, c := range r.Claims {
		if holds(c) {
			sum += c.Beat
		}
	}
	return sum
}

// identity is how the spec names a holder: by what no other has, and its note.
func identity(c *record.Claim) string {
	if c == nil {
		return ""
	}
	note := strings.ToValidUTF8(c.Note[:min(len(c.Note), 200)], "")
	return strings.TrimSpace(cmp.Or(driver.ShortOwner(c.Owner), "lingers") + " " + note)
}

// same reports whether two identities are of one claim.
func same(a, b string) bool {
	a, _, _ = strings.Cut(a, " ")
	b, _, _ = strings.Cut(b, " ")
	return a == b
}

// change is the merge patch that makes a Lease which said s say what r says.
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

// spec is what changes in the spec. Leader election goes by when it has seen another one last, to the
// second, so that whenever somebody's time has started again renewTime is a second it never was, for the
// same holder; and its duration is that of the longest.
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

// value is what p points to, or nothing.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
