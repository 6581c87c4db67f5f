package wire

// Paths of an instance's history and figures, and of actions in the console.
const (
	History  = "/v1/history"
	Overview = "/v1/overview"
	Me       = "/v1/me"
	Reserve  = "/v1/reserve"
	Remove   = "/v1/remove"
	Reset    = "/v1/reset"
)

// CodeWrongToken refuses a call with an unknown token; CodeUnnamed refuses one without a token.
const CodeWrongToken = "wrong_token"

// Kinds of entries, beside the kinds of events.
const (
	Expired  = "expired" // its holder did not renew it in time, as far as this instance knows
	Waiting  = "waiting" // a place in the queue was taken
	Left     = "left"    // a place was given up, removed or lost
	Reserved = "reserved"
	WasReset = "reset"
	Gap      = "gap" // the instance did not see all that happened
)

// EntryKinds are all kinds of entries.
var EntryKinds = []string{EventGranted, EventReleased, Expired, EventEvicted, EventEnded, Waiting, Left, Reserved, WasReset, Gap}

// An Entry is one line of a history. Its times are for people, by the instance's clock.
type Entry struct {
	Seq     string   `json:"seq"`
	Kind    string   `json:"kind"`
	Time    string   `json:"time"`
	Ago     int64    `json:"ago_ms"`
	Name    string   `json:"name,omitempty"`
	Owner   string   `json:"owner,omitempty"`
	Handle  string   `json:"handle,omitempty"`
	Token   string   `json:"token,omitempty"`
	Mode    string   `json:"mode,omitempty"`
	Note    string   `json:"note,omitempty"`
	Details *Details `json:"details,omitempty"`
	Held    *int64   `json:"held_ms,omitempty"`
	Waited  *int64   `json:"waited_ms,omitempty"`
	Silent  *int64   `json:"silent_ms,omitempty"`
	Reason  string   `json:"reason,omitempty"`
	By      string   `json:"by,omitempty"`
	From    string   `json:"from,omitempty"` // of a gap
	To      string   `json:"to,omitempty"`
}

// Entries is the answer to History.
type Entries struct {
	Entries  []Entry `json:"entries"`
	Next     string  `json:"next,omitempty"`
	Begins   string  `json:"begins"`
	BeginsMS int64   `json:"begins_ms"`
	Instance string  `json:"instance"`
	History  string  `json:"history"`
	Complete bool    `json:"complete"`
	Gaps     []Span  `json:"gaps"`
	Warning  string  `json:"warning,omitempty"`
}

// A Span is a time in which an instance may have missed something. Without an end it still lasts.
type Span struct {
	From string `json:"from"`
	To   string `json:"to,omitempty"`
}

// Figures is the answer to Overview.
type Figures struct {
	Held        int         `json:"held"`
	Waiting     int         `json:"waiting"`
	Names       int         `json:"names"`
	Longest     int64       `json:"longest_wait_ms"`
	LongestName string      `json:"longest_wait_name,omitempty"`
	AtRisk      *int        `json:"at_risk,omitempty"`       // nil: the length of leases is unknown
	LostHour    *int        `json:"lost_hour,omitempty"`     // nil: there were more ends than are kept
	EvictedHour *int        `json:"evicted_hour,omitempty"`  // nil: as above
	GrantsMin   *int        `json:"grants_minute,omitempty"` // nil: there were more than are kept
	P50         *int64      `json:"wait_p50_ms,omitempty"`
	P99         *int64      `json:"wait_p99_ms,omitempty"`
	Contended   []Contended `json:"contended"`
	Hosts       []Host      `json:"hosts"`
	Ends        []Entry     `json:"ends"`
	Series      Series      `json:"series"`
	BeginsMS    int64       `json:"begins_ms"`
	Partial     bool        `json:"partial"`            // there is no look at the whole store
	Age         *int64      `json:"age_ms,omitempty"`   // of the look; absent if Partial
	Pause       *int64      `json:"pause_ms,omitempty"` // until the next look; absent if Partial
	Store       string      `json:"store"`
}

// States of the store at the last look. Unknown means that there was none yet, or that the store
// did not answer in time.
const StoreUp, StoreDown, StoreUnknown = "up", "down", "unknown"

// Contended is a name that has waiters.
type Contended struct {
	Name    string `json:"name"`
	Waiting int    `json:"waiting"`
	Longest int64  `json:"longest_wait_ms"`
}

// A Host holds leases or waits for some.
type Host struct {
	Host    string `json:"host"`
	Held    int    `json:"held"`
	Waiting int    `json:"waiting"`
}

// A Series has a point for each step of time, the newest first.
type Series struct {
	Step   int64   `json:"step_ms"`
	Points []Point `json:"points"`
}

// A Point is one step of a Series. An absent field is unknown.
type Point struct {
	Ago     int64  `json:"ago_ms"`
	Held    *int   `json:"held,omitempty"`
	Waiting *int   `json:"waiting,omitempty"`
	Grants  int    `json:"grants"`
	Lost    int    `json:"lost"`
	P50     *int64 `json:"wait_p50_ms,omitempty"`
	P99     *int64 `json:"wait_p99_ms,omitempty"`
}

// Identity is the answer to Me.
type Identity struct {
	Client   string       `json:"client,omitempty"`
	By       string       `json:"by"`
	Rights   []RightsRule `json:"rights"`
	Reserves bool         `json:"reserves"`
	Removes  bool         `json:"removes"`
	Version  string       `json:"version,omitempty"`
	Engine   string       `json:"engine"`
	Instance string       `json:"instance"`
	Uptime   int64        `json:"uptime_ms"`
}

// How a client is identified.
const ByToken, ByCertificate, ByProxy, ByOpen = "token", "certificate", "proxy", "open"

// A RightsRule grants rights to the names that begin with a prefix.
type RightsRule struct {
	Prefix string   `json:"prefix"`
	Rights []string `json:"rights"`
}

// A ReserveCall is the body of Reserve.
type ReserveCall struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
	User   string `json:"user,omitempty"`
	For    int64  `json:"for_ms,omitempty"`
	Wait   int64  `json:"wait_ms,omitempty"`
}

// A RemoveCall is the body of Remove. The owner is whole, or its handle.
type RemoveCall struct {
	Name   string `json:"name"`
	Owner  string `json:"owner,omitempty"`
	Handle string `json:"handle,omitempty"`
	Reason string `json:"reason"`
}

// A ResetCall is the body of Reset. With a Token it ends no hold with a greater one.
type ResetCall struct {
	Name  string `json:"name"`
	Token string `json:"token,omitempty"`
}
