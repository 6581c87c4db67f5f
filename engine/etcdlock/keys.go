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

// escape removes slashes from names, because "etcdctl lock a" also waits for the keys below "a/b/".
// It works byte by byte, so that names with a common beginning keep it.
var (
	escape   = strings.NewReplacer("%", "%25", "/", "%2F").Replace
	unescape = strings.NewReplacer("%25", "%", "%2F", "/").Replace
)

// dir returns the beginning of the keys of a resource.
func (d *Driver) dir(name string) string { return d.root + escape(name) + "/" }

// tombstone returns the key that keeps a put of key under a lease from coming late. No name is
// empty, so it belongs to no resource.
func (d *Driver) tombstone(key string, lease clientv3.LeaseID) string {
	return d.root + "/" + key[len(d.root):] + "-" + strconv.FormatInt(int64(lease), 16)
}

// markDir returns the beginning of the marks that keep an owner out of the resource at dir. Each
// mark ends in its own lease, so that none shortens another. It is the name of no resource and of
// no tombstone.
func (d *Driver) markDir(dir, owner string) string {
	return d.root + "//" + dir[len(d.root):] + escape(owner) + "/"
}

func lastPart(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

// dirOf returns the dir of the resource that a key belongs to.
func dirOf(key string) string { return key[:strings.LastIndexByte(key, '/')+1] }

// content is the value of a claim's key. A key of another client has none, and is exclusive.
type content struct {
	Owner   string `json:"owner,omitempty"` // "": another client's, or a hold that lingers
	Shared  bool   `json:"shared,omitempty"`
	Limit   int    `json:"limit,omitempty"`
	Note    string `json:"note,omitempty"`
	Lingers bool   `json:"lingers,omitempty"` // its owner is done, and the resource stays taken
	Evicted string `json:"evicted,omitempty"` // why an operator is about to delete the key
}

func encode(req *driver.Request) string {
	shared := req.Mode == driver.Shared && weightOf(req) == 0
	return content{Owner: req.Owner, Shared: shared, Limit: req.Limit, Note: req.Note}.encode()
}

// weightOf returns the weight that ends the key of a claim; 0: none, because it is 1 or the claim
// is exclusive.
func weightOf(req *driver.Request) int {
	if req.Mode != driver.Shared || req.Weight <= 1 {
		return 0
	}
	return req.Weight
}

// weigh appends the weight of its claim to a key. In the value, the claim is not shared: processes
// that know no weights take it for exclusive, and do not erase the weight when they write the
// value.
func weigh(key string, weight int) string {
	if weight == 0 {
		return key
	}
	return fmt.Sprint(key, "w", weight)
}

// weightIn returns the weight at the end of a key; 0: none. Keys of other clients have none.
func weightIn(key string) int {
	_, end, _ := strings.Cut(lastPart(key), "w")
	weight, err := strconv.Atoi(end)
	if err != nil || weight <= 1 || weight > driver.MaxWeight || end != strconv.Itoa(weight) {
		return 0
	}
	return weight
}

func (c content) encode() string {
	b, _ := json.Marshal(c) // strings and numbers always encode
	return string(b)
}

func decode(value []byte) (c content) {
	if json.Unmarshal(value, &c) != nil || c.Limit < 0 { // nothing fits into a negative limit
		return content{}
	}
	return c
}

// An entry is one key of a resource, as it was read.
type entry struct {
	content
	key    string
	weight int   // 0: no weight in the key
	rev    int64 // create revision: its place in the order, and its fence
	mod    int64
	lease  clientv3.LeaseID
}

// name returns the owner for operators. For another client it is the end of its key, and for a hold
// that lingers it is empty.
func (e *entry) name() string {
	if e.Owner != "" || e.Lingers {
		return e.Owner
	}
	return lastPart(e.key)
}

// entries returns the keys of the resource at dir, in order. Other keys below it, such as those of
// "etcdctl lock" on a name with a slash, belong to other resources.
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
	if e.claim().TooHeavy() { // no driver puts such a key
		e.content, e.weight = content{}, 0
	}
	return e
}

func byRevision(a, b entry) int { return cmp.Compare(a.rev, b.rev) }

// claim returns the claim of the entry as the rule of the queue sees it.
func (e entry) claim() queue.Claim {
	return queue.Claim{Mode: e.mode(), Limit: e.Limit, Weight: e.weight}
}
