// Package wire has the messages of the HTTP service, for package serve and package httplock.
// serve/openapi.json describes the same.
package wire

import (
	"crypto/sha256"
	"encoding/base64"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// Paths.
const (
	Acquire  = "/v1/acquire"
	Renew    = "/v1/renew"
	Release  = "/v1/release"
	Note     = "/v1/note"
	Evict    = "/v1/evict"
	Fence    = "/v1/fence"
	Limit    = "/v1/limit"
	Show     = "/v1/lock"
	List     = "/v1/locks"
	Features = "/v1/features"
	Events   = "/v1/events"
	Check    = "/v1/check"
	Rehearse = "/v1/rehearse"
)

// Outcomes of calls. The first two are yes, the next two no.
const (
	Granted = "granted"
	Done    = "done"
	Busy    = "busy"    // 409
	Lost    = "lost"    // 410
	Unknown = "unknown" // 503
	Refused = "refused" // 4xx, 5xx: nothing has changed, unless the code is CodeReadOnly or CodeFull
)

// Codes distinguish refusals.
const (
	CodeBusy        = "busy"
	CodeNotYet      = "not_yet"
	CodeSuperseded  = "superseded"
	CodeDraining    = "draining"
	CodeLost        = "lost"
	CodeEvicted     = "evicted"
	CodeUsed        = "owner_used"
	CodeLate        = "late_call"
	CodeUnknown     = "unknown"
	CodeTooOld      = "too_old" // nothing was sent to the store
	CodeUnsupported = "unsupported"
	CodeInvalid     = "invalid"
	CodeInvalidName = "invalid_name"
	CodeCorrupt     = "corrupt"
	CodeDenied      = "denied"
	CodeUnnamed     = "unauthenticated"
	CodeLimit       = "limit"
	CodeNotFound    = "not_found"
	CodeMethod      = "method"
	CodeOrigin      = "origin"
	CodeUnready     = "not_ready"
	CodeReadOnly    = "read_only"
	CodeFull        = "full"
	CodeTooHeavy    = "too_heavy"
)

// Modes.
const (
	Exclusive = "exclusive"
	Shared    = "shared"
)

// A Claim identifies a claim. All calls about it have these fields.
type Claim struct {
	Name   string `json:"name"`
	Owner  string `json:"owner,omitempty"`
	Mode   string `json:"mode,omitempty"`
	Limit  int    `json:"limit,omitempty"`
	Weight int    `json:"weight,omitempty"` // of a shared claim; 0 counts as 1
	Note   string `json:"note,omitempty"`
	// Call counts the calls of one Caller, which has made the owner its own. Answered is the number
	// of the call up to which every acquire was answered, and every release if the owner is used again.
	Call     int64  `json:"call,omitempty"`
	Answered int64  `json:"answered,omitempty"`
	Caller   string `json:"caller,omitempty"`
}

// An AcquireCall is the body of Acquire.
type AcquireCall struct {
	Claim
	TTL     int64 `json:"ttl_ms"`
	Wait    int64 `json:"wait_ms,omitempty"`
	Queue   bool  `json:"queue,omitempty"`
	AtLeast int64 `json:"at_least_ms,omitempty"`
	// Wanted asks for notices that others wait.
	Wanted bool `json:"wanted,omitempty"`
	// WantedOnce says that one notice is enough until the answer to the next renewal. Ask only an
	// instance whose Abilities have it.
	WantedOnce bool `json:"wanted_once,omitempty"`
	// Details may come with a note, which is then their text, or without one.
	Details *Details `json:"details,omitempty"`
}

// A NoteCall is the body of Note. Without Details, the lease keeps its details.
type NoteCall struct {
	Claim
	Details *Details `json:"details,omitempty"`
}

// A RenewCall is the body of Renew.
type RenewCall struct {
	Claim
	TTL int64 `json:"ttl_ms"`
	// As an AcquireCall's: another instance may have served that.
	Wanted     bool `json:"wanted,omitempty"`
	WantedOnce bool `json:"wanted_once,omitempty"`
}

// A ReleaseCall is the body of Release.
type ReleaseCall struct {
	Claim
	Linger  int64 `json:"linger_ms,omitempty"`
	AtLeast int64 `json:"at_least_ms,omitempty"`
	// Unused says that nobody has worked under the lease, so nothing stays taken.
	Unused bool `json:"unused,omitempty"`
}

// An EvictCall is the body of Evict.
type EvictCall struct {
	Name   string `json:"name"`
	Owner  string `json:"owner"`
	Reason string `json:"reason"`
}

// A FenceCall is the body of Fence.
type FenceCall struct {
	Claim
	Token string `json:"token"`
}

// A LimitCall is the body of Limit.
type LimitCall struct {
	Name  string `json:"name"`
	Limit *int   `json:"limit"` // 0: none; nil is refused, lest a call without it removes a limit
}

// A Grant is the answer to Acquire and Renew.
type Grant struct {
	Outcome string `json:"outcome"`
	Name    string `json:"name"`
	Owner   string `json:"owner"`
	Token   string `json:"token"`
	TTL     int64  `json:"ttl_ms"`
	Left    int64  `json:"left_ms"`
	Waited  int64  `json:"waited_ms"`
	Wanted  bool   `json:"wanted,omitempty"` // others wait, as far as the engine has told by now
}

// An Answer is the answer to other calls, except those that show something.
type Answer struct {
	Outcome string  `json:"outcome"`
	Code    string  `json:"code,omitempty"`
	Error   string  `json:"error,omitempty"`
	Holder  *Holder `json:"holder,omitempty"`
	Queued  bool    `json:"queued,omitempty"`
	Wakes   bool    `json:"wakes,omitempty"`
	Retry   int64   `json:"retry_ms,omitempty"`
	Warning string  `json:"warning,omitempty"` // of /readyz: why the store grants nothing, though it renews
}

// A Holder is one lease.
type Holder struct {
	Owner  string `json:"owner"`
	Handle string `json:"handle"`
	Mode   string `json:"mode"`
	Limit  int    `json:"limit,omitempty"`
	Weight int    `json:"weight,omitempty"` // of a shared holder
	Token  string `json:"token"`
	Held   int64  `json:"held_ms,omitempty"`
	Left   int64  `json:"left_ms,omitempty"`
	TTL    int64  `json:"ttl_ms,omitempty"`     // as last granted or renewed
	Since  int64  `json:"renewed_ms,omitempty"` // how long ago that was
	// Unseen is for how long no renewal was seen, where TTL is unknown.
	Unseen int64  `json:"unrenewed_ms,omitempty"`
	Note   string `json:"note,omitempty"`

	Details *Details `json:"details,omitempty"` // nil: there is only the note
}

// A Waiter is one place in a queue.
type Waiter struct {
	Owner  string `json:"owner"`
	Handle string `json:"handle"`
	Mode   string `json:"mode"`
	Weight int    `json:"weight,omitempty"` // of a shared waiter
	Waited int64  `json:"waited_ms,omitempty"`
	Note   string `json:"note,omitempty"`
	Here   bool   `json:"here,omitempty"` // of Show: it waits at this instance, which can remove it

	Details *Details `json:"details,omitempty"` // as a Holder's
}

// A State is the answer to Show.
type State struct {
	Name    string   `json:"name"`
	Token   string   `json:"token"`
	Limit   int      `json:"limit,omitempty"` // set by an operator
	Used    int64    `json:"used,omitempty"`  // the weights of all shared holders
	Holders []Holder `json:"holders"`
	Waiters []Waiter `json:"waiters"`
	Damaged string   `json:"damaged,omitempty"`
}

// Locks is the answer to List.
type Locks struct {
	Locks   []State `json:"locks"`
	Next    string  `json:"next,omitempty"`
	Damaged string  `json:"damaged,omitempty"`
}

// Page is how many locks List returns by default, and MaxPage is how many it returns at most.
const Page, MaxPage = 100, 1000

// Abilities is the answer to Features.
type Abilities struct {
	Fencing    bool  `json:"fencing"`
	Shared     bool  `json:"shared"`
	Fair       bool  `json:"fair"`
	Wakes      bool  `json:"wakes"`
	Resumes    bool  `json:"resumes"`
	MinTTL     int64 `json:"min_ttl_ms"`
	Step       int64 `json:"step_ms"`
	SessionTTL int64 `json:"session_ttl_ms,omitempty"`
	Inspects   bool  `json:"inspects"`
	Evicts     bool  `json:"evicts"`
	Lingers    bool  `json:"lingers"`
	Notes      bool  `json:"notes"`
	Raises     bool  `json:"raises_fences"`
	Lifts      bool  `json:"lifts_fences"`
	Bars       bool  `json:"bars_late_calls"`
	Tells      bool  `json:"tells"`
	Recalls    bool  `json:"recalls"`
	Keeps      bool  `json:"keeps"`
	WantedOnce bool  `json:"wanted_once"`
	Weights    bool  `json:"weights"`
	Limits     bool  `json:"limits"`
	MaxWait    int64 `json:"max_wait_ms"`
}

// A Finding is something that the service has found about its engine. Level is the name of a
// driver.Level.
type Finding struct {
	About  string `json:"about"`
	Where  string `json:"where,omitempty"`
	Level  string `json:"level"`
	Text   string `json:"text"`
	Advice string `json:"advice,omitempty"`
}

// Findings is the answer to Check.
type Findings struct {
	Findings []Finding `json:"findings"`
	Failed   string    `json:"failed,omitempty"` // why there are no more
}

// Kinds of events.
const (
	EventGranted  = "granted"
	EventReleased = "released"
	EventEvicted  = "evicted"
	EventEnded    = "ended"  // the cause is unknown
	EventWanted   = "wanted" // of a lease: others wait
	EventOpen     = "open"   // the stream begins; if Partial, it has only this instance's events
	EventMissed   = "missed"
)

// EventKinds are those that a stream can be asked for. Without a wish it has all but EventWanted.
var EventKinds = []string{EventGranted, EventReleased, EventEvicted, EventEnded, EventWanted}

// An Event is the data of one server-sent event.
type Event struct {
	Name   string `json:"name,omitempty"`
	Owner  string `json:"owner,omitempty"`
	Handle string `json:"handle,omitempty"`
	Token  string `json:"token,omitempty"`
	Mode   string `json:"mode,omitempty"`
	Note   string `json:"note,omitempty"`
	Reason string `json:"reason,omitempty"`

	Details *Details `json:"details,omitempty"` // as a Holder's

	Partial bool `json:"partial,omitempty"` // of open: there are too many leases to follow other instances' events
}

// Handle returns a text that others see in place of an owner. It distinguishes owners without
// revealing them. It begins with the short owner.
func Handle(owner string) string {
	if owner == "" {
		return ""
	}
	sum := sha256.Sum256([]byte("leasehold owner\n" + owner))
	return driver.ShortOwner(owner) + "~" + base64.RawURLEncoding.EncodeToString(sum[:15])
}

// HandleOf returns the handle of o. A driver on another service knows nothing but that.
func HandleOf(o driver.Owner) string {
	if o.IsShown() {
		return o.Reveal()
	}
	return Handle(o.Reveal())
}

// Names reports whether text names o: it is the whole owner, or its handle.
func Names(text string, o driver.Owner) bool {
	handle := HandleOf(o)
	return handle != "" && (handle == text || handle == Handle(text))
}

// Millis rounds a duration down to milliseconds.
func Millis(d time.Duration) int64 { return d.Milliseconds() }

// Ceil rounds a duration up to milliseconds.
func Ceil(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// Duration returns a duration of ms milliseconds.
func Duration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
