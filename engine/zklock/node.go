package zklock

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
)

// What precedes the sequence number in the name of a claim's node.
const (
	markLock  = "-lock-"    // Curator's InterProcessMutex, go-zookeeper's Lock
	markRead  = "-__READ__" // Curator's InterProcessReadWriteLock
	markWrite = "-__WRIT__" // the same, exclusive
	markLimit = "-limit-"   // ours: followed by the limit and markRead, or a weight
	// markWeight is ours, for weights above 1: followed by the weight and what marks exclusive claims. Clients that
	// know no weights, other programs among them, queue behind the claim as behind an exclusive one.
	markWeight = "-weight-"
	markTry    = "-try"      // ours: follows the guid of a claim that does not wait
	protected  = "_c_"       // before the guid
	guidLen    = 2 * 128 / 8 // in hexadecimal digits
	seqDigits  = 10          // of a sequence number, with its sign
)

// A node is a claim on a resource, as parsed from the name of its node.
type node struct {
	name   string
	guid   string // "" for other clients' nodes
	mode   driver.Mode
	limit  int // 0: none
	weight int // of a shared claim
	seq    int32

	passing bool // it leaves unless it is granted at once
}

// guidOf returns the guid of owner's claims. It does not reveal the owner, because everybody can
// read names.
func guidOf(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:guidLen/2])
}

// namePrefix returns the name of a claim's node up to the sequence number.
func namePrefix(req *driver.Request, exclusive string) string {
	name := protected + guidOf(req.Owner)
	if !req.Queue {
		name += markTry
	}
	if req.Mode == driver.Exclusive {
		return name + exclusive
	}
	if req.Limit > 0 {
		name += markLimit + strconv.Itoa(req.Limit)
	}
	if req.Weight > 1 {
		return name + markWeight + strconv.Itoa(req.Weight) + exclusive
	}
	return name + markRead
}

// parseNode parses the name of a node below a resource. A node with a sequence number that is not
// shared counts as exclusive, so that other clients' kinds of locks exclude ours.
func parseNode(name string) (node, error) {
	n := node{name: name}
	kind, seq, ok := splitSeq(name)
	if !ok {
		return n, fmt.Errorf("%w: %q", ErrAlien, name)
	}
	n.seq = seq
	rest, isOurs := strings.CutPrefix(kind, protected)
	if isOurs = isOurs && len(rest) >= guidLen; isOurs {
		n.guid, rest = rest[:guidLen], rest[guidLen:]
		n.passing = strings.HasPrefix(rest, markTry+"-")
	}
	if before, ok := strings.CutSuffix(kind, markRead); ok {
		n.mode, n.weight = driver.Shared, 1
		if i := strings.LastIndex(before, markLimit); i >= 0 {
			n.limit, _ = strconv.Atoi(before[i+len(markLimit):]) // without a number it is not our limit
		}
		return n, nil
	}
	if limit, weight, ok := splitWeight(strings.TrimPrefix(rest, markTry)); isOurs && ok {
		n.mode, n.limit, n.weight = driver.Shared, limit, weight
	}
	return n, nil
}

// splitWeight parses the limit and the weight in the marks of a claim with a weight above 1. For any
// other marks, ok is false. A name that is misread must count as exclusive.
func splitWeight(marks string) (limit, weight int, ok bool) {
	before, number, _ := strings.Cut(marks, markWeight)
	number, isLock := strings.CutSuffix(number, markLock)
	number, isWrite := strings.CutSuffix(number, markWrite)
	weight, ok = decimal(number)
	if isLock == isWrite || !ok || weight < 2 {
		return 0, 0, false
	}
	if before == "" {
		return 0, weight, true
	}
	number, isLimit := strings.CutPrefix(before, markLimit)
	limit, ok = decimal(number)
	return limit, weight, isLimit && ok && limit >= weight
}

// decimal parses a number as strconv.Itoa writes it, up to driver.MaxWeight.
func decimal(text string) (int, bool) {
	n, err := strconv.ParseInt(text, 10, 32)
	return int(n), err == nil && strconv.FormatInt(n, 10) == text
}

// splitSeq splits the sequence number off the end of a name. With its sign it is ten characters
// wide, or eleven. What precedes it may end in a dash too.
func splitSeq(name string) (kind string, seq int32, ok bool) {
	at := len(name) - seqDigits
	if at < 0 {
		return "", 0, false
	}
	if before, minus := strings.CutSuffix(name[:at], "-"); minus && (before == "" || strings.HasSuffix(before, "-") || strings.HasSuffix(before, "_")) {
		at--
	}
	n, err := strconv.ParseInt(name[at:], 10, 32)
	return name[:at], int32(n), err == nil
}

// parseNodes returns the claims of a resource in the order of their creation. Sequence numbers are
// signed and wrap around, so their distance decides.
func parseNodes(names []string) ([]node, error) {
	nodes := make([]node, len(names))
	for i, name := range names {
		n, err := parseNode(name)
		if err != nil {
			return nil, err
		}
		nodes[i] = n
	}
	if len(nodes) > 1 {
		base := nodes[0].seq
		slices.SortFunc(nodes, func(a, b node) int {
			return cmp.Or(cmp.Compare(a.seq-base, b.seq-base), cmp.Compare(a.name, b.name))
		})
	}
	return nodes, nil
}

// details is the content of a claim's node, for people and for Inspect.
type details struct {
	Owner string `json:"owner,omitempty"` // "": the hold lingers
	Note  string `json:"note,omitempty"`
	// Lingers means that another node may take this node's place when it is deleted.
	Lingers bool `json:"lingers,omitempty"`
	// Left means that this node was left behind by an owner that is done.
	Left bool `json:"left,omitempty"`
}

func (d details) encode() []byte {
	b, _ := json.Marshal(d) // strings always encode
	return b
}

// lingers reports whether data, of any client's node, marks a hold that lingers.
func lingers(data []byte) bool {
	var d details
	return json.Unmarshal(data, &d) == nil && d.Lingers
}

// detailsOf returns the content of n. The owner of a foreign node is the node's name. A hold that
// lingers has no owner.
func detailsOf(n node, data []byte) details {
	var d details
	switch {
	case json.Unmarshal(data, &d) != nil, d.Owner != "" && guidOf(d.Owner) != n.guid:
		return details{Owner: n.name}
	case d.Owner == "" && !d.Left:
		d.Owner = n.name
	}
	return d
}
