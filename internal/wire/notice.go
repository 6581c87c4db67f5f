package wire

// Types of notices.
const (
	NoticeLost    = "lease.lost"
	NoticeEvicted = "lease.evicted"
	NoticeWait    = "wait.long"
)

// A Notice is the body of a webhook's request. "leasehold schema webhook" prints what its tags say.
type Notice struct {
	Type string     `json:"type" enum:"lease.lost,lease.evicted,wait.long" about:"what happened"`
	Time string     `json:"timestamp" about:"when, by the instance's clock, in RFC 3339"`
	Data NoticeData `json:"data" about:"to whom"`
}

// NoticeData is what a Notice is about.
type NoticeData struct {
	Instance string         `json:"instance" about:"which tells it: its host and process"`
	Engine   string         `json:"engine" about:"of the store, such as redis"`
	Name     string         `json:"name" about:"the lock's"`
	Owner    string         `json:"owner" about:"who held it or waits: the beginning of the owner"`
	Handle   string         `json:"handle" about:"what leasehold evict takes in place of the owner"`
	Token    string         `json:"token,omitempty" about:"of the lease"`
	Mode     string         `json:"mode" enum:"exclusive,shared" about:"how it is or was to be held"`
	Note     string         `json:"note,omitempty" about:"the owner's, as text"`
	Host     string         `json:"host,omitempty" about:"the owner's, if its details have one"`
	User     string         `json:"user,omitempty" about:"as host"`
	Link     string         `json:"link,omitempty" about:"as host"`
	Cause    string         `json:"cause,omitempty" enum:"expired,unexplained" about:"why a lease was lost: it was not renewed in time, or the store does not say"`
	Reason   string         `json:"reason,omitempty" about:"of an eviction"`
	By       string         `json:"by,omitempty" about:"the client of this instance that evicted it"`
	Held     int64          `json:"held_ms,omitempty" about:"for how long it was held at least, in milliseconds"`
	Silent   int64          `json:"silent_ms,omitempty" about:"for how long it was not renewed, in milliseconds"`
	Waited   int64          `json:"waited_ms,omitempty" about:"for how long it has waited, in milliseconds"`
	Holders  []NoticeHolder `json:"holders,omitempty" about:"one that is waited for"`
}

// A NoticeHolder is a holder that a waiter waits for.
type NoticeHolder struct {
	Owner  string `json:"owner" about:"its beginning"`
	Handle string `json:"handle" about:"what leasehold evict takes in place of the owner"`
	Note   string `json:"note,omitempty" about:"the owner's"`
	Held   int64  `json:"held_ms,omitempty" about:"for how long, in milliseconds, if the store tells"`
}
