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
	Time string     `json:"timestamp" about:"when it happened, by the clock of the instance, in RFC 3339"`
	Data NoticeData `json:"data" about:"whom it concerns"`
}

// NoticeData is what a Notice is about.
type NoticeData struct {
	Instance string         `json:"instance" about:"host and process of the instance that reports it"`
	Engine   string         `json:"engine" about:"kind of the store, such as redis"`
	Name     string         `json:"name" about:"name of the lock"`
	Owner    string         `json:"owner" about:"the beginning of the owner that held or waits"`
	Handle   string         `json:"handle" about:"a stand-in for the owner, which leasehold evict accepts"`
	Token    string         `json:"token,omitempty" about:"the fencing token of the lease"`
	Mode     string         `json:"mode" enum:"exclusive,shared" about:"mode in which it was held or is wanted"`
	Note     string         `json:"note,omitempty" about:"note of the owner, as text"`
	Host     string         `json:"host,omitempty" about:"host of the owner, if its details have one"`
	User     string         `json:"user,omitempty" about:"user of the owner, if its details have one"`
	Link     string         `json:"link,omitempty" about:"link of the owner, if its details have one"`
	Cause    string         `json:"cause,omitempty" enum:"expired,unexplained" about:"why the lease was lost: it was not renewed in time, or the store does not say"`
	Reason   string         `json:"reason,omitempty" about:"reason that was given for the eviction"`
	By       string         `json:"by,omitempty" about:"the client of this instance that evicted the owner"`
	Held     int64          `json:"held_ms,omitempty" about:"how long the lease was held at least, in milliseconds"`
	Silent   int64          `json:"silent_ms,omitempty" about:"time since the last renewal, in milliseconds"`
	Waited   int64          `json:"waited_ms,omitempty" about:"how long the owner has waited, in milliseconds"`
	Holders  []NoticeHolder `json:"holders,omitempty" about:"a holder that the owner waits for"`
}

// A NoticeHolder is a holder that a waiter waits for.
type NoticeHolder struct {
	Owner  string `json:"owner" about:"the beginning of the owner"`
	Handle string `json:"handle" about:"a stand-in for the owner, which leasehold evict accepts"`
	Note   string `json:"note,omitempty" about:"note of the owner"`
	Held   int64  `json:"held_ms,omitempty" about:"how long the lease has been held, in milliseconds, if the store says so"`
}
