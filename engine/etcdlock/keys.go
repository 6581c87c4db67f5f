package etcdlock

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/queue"
)

// escape keeps slashes out of names: "etcdctl lock a" also waits for the keys below
// "a/b/". It works byte by byte, so that what begins alike still does.
var (
	escape   = strings.NewReplacer("%", "%25", "/", "%2F").Replace
	unescape = strings.NewReplacer("%25", "%", "%2F", "/").Replace
)

// dir is what the keys of a resource begin with.
func (d *Driver) dir(name string) string { return d.root + escape(name) + "/" }

// tombstone is the key that keeps a put of key under a lease from coming late: no name is
// empty, so that no resource has it.
func (d *Driver) tombstone(key string, lease clientv3.LeaseID) string {
	return d.root + "/" + key[len(d.root):] + "-" + strconv.FormatInt(int64(lease), 16)
}

// markDir is what the marks begin with that keep an owner out of the resource at dir; each mark ends in its own lease, so
// that none shortens another. The name of no resource is empty, and that of no tombstone.
func (d *Driver) markDir(dir, owner string) string {
	return d.root + "//" + dir[len(d.root):] + escape(owner) + "/"
}

func lastPart(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

// dirOf is the dir of the resource that a key belongs to.
func dirOf(key string) string { return key[:strings.LastIndexByte(key, '/')+1] }

// content is the value of a claim's key. That of another client is none of it: exclusive.
type content struct {
	Owner   string `json:"owner,omitempty"` // "": another client's, or nobody's who lingers
	Shared  bool   `json:"shared,omitempty"`
	Limit   int    `json:"limit,omitempty"`
	Note    string `json:"note,omitempty"`
	Lingers bool   `json:"lingers,omitempty"` // without an owner, whose work is done
	Evicted string `json:"evicted,omitempty"` // why an operator is about to delete the key
}

func encode(req *driver.Request) string {
	shared := req.Mode == driver.Shared && weightOf(req) == 0
	return content{Owner: req.Owner, Shared: shared, Limit: req.Limit, Note: req.Note}.encode()
}

// weightOf is the weight that stands in the key of a claim; 0: none, as it is 1 or the claim is exclusive.
func weightOf(req *driver.Request) int {
	if req.Mode != driver.Shared || req.Weight <= 1 {
		return 0
	}
	return req.Weight
}

// weigh ends a key by the weight of its claim, which is not shared by its value: processes that know no weights take it for
// exclusive, and do not erase the weight when they write the value.
func weigh(key string, weight int) string {
	if weight == 0 {
		return key
	}
	return fmt.Sprint(key, "w", weight)
}

// weightIn is the weight that a key ends by; 0: none. What other clients put has none.
func weightIn(key string) int {
	_, end, _ := strings.Cut(lastPart(key), "w")
	weight, err := strconv.Atoi(end)
	if err != nil || weight <= 1 || weight > driver.MaxWeight || end != strconv.Itoa(weight) {
		return 0
	}
	return weight
}

func (c content) encode() string {
	b, _ := json.Marshal(c) // strings and numbers never fail
	return string(b)
}

func decode(value []byte) (c content) {
	if json.Unmarshal(value, &c) != nil || c.Limit < 0 { // which nobody could ever fit into
		return content{}
	}
	return c
}

// An entry is one key of a resource, as it was read.
type entry struct {
	content
	key    string
	weight int   // 0: that of others
	rev    int64 // create revision: its place in the order, and its fence
	mod    int64
	lease  clientv3.LeaseID
}

// name is what an operator calls the owner: for another client the end of its key, nothing
// for what lingers.
func (e *entry) name() string {
	if e.Owner != "" || e.Lingers {
		return e.Owner
	}
	return lastPart(e.key)
}

// entries are the keys of the resource at dir, in order. Others below it, such as those
// of "etcdctl lock" on a name with a slash, belong to other resources.
func entries(dir string, kvs []*mvccpb.KeyValue) []entry {
	all := make([]entry, 0, len(kvs))
	for _, kv := range kvs {
		if key := string(kv.Key); !strings.Contains(key[len(dir):], "/") {
			all = append(all, newEntry(kv))
		}
	}
	slices.SortFunc(all, byRevision)
	return all
}

func newEntry(kv *mvccpb.KeyValue) entry {
	e := entry{
		content: decode(kv.Value), key: string(kv.Key),
		rev: kv.CreateRevision, mod: kv.ModRevision, lease: clientv3.LeaseID(kv.Lease),
	}
	if !e.Shared && (e.Owner != "" || e.Lingers) {
		e.weight = weightIn(e.key)
	}
	if e.claim().TooHeavy() { // which nobody puts
		e.content, e.weight = content{}, 0
	}
	return e
}

func byRevision(a, b entry) int { return cmp.Compare(a.rev, b.rev) }

// claim is what the rule of the queue has to know of the entry's claim.
func (e entry) claim() queue.Claim {
	return queue.Claim{Mode: e.mode(), Limit: e.Limit, Weight: e.weight}
}
