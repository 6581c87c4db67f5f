package explored

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// A keeper stands in for one ZooKeeper server: nodes, sessions, watches, transactions, written from
// ZooKeeper's documentation of them and compared with a real one by TestKeeperIsLikeZooKeeper. It
// ends a session at the first instant at which it may. It has no ensemble, no permissions and no TTL
// nodes, and keeps containers that are empty.
type keeper struct {
	mu       sync.Mutex
	zxid     int64               // guarded by mu; of the last change
	last     int64               // guarded by mu; session
	greeted  int                 // guarded by mu; connections
	nodes    map[string]*znode   // guarded by mu
	sessions map[int64]*zsession // guarded by mu
	data     watchers            // guarded by mu; of nodes
	children watchers            // guarded by mu; of their children
	granted  granted             // guarded by mu
}

type znode struct {
	data                []byte
	created, changed    int64 // zxids
	childChange         int64
	version             int32
	creates, childCount int32
	owner               int64 // session of an ephemeral node; 0: it is none
}

type zsession struct {
	timeout time.Duration
	peer    *peer // that carries it
	end     *time.Timer
	ends    time.Time
}

// watchers are those who want to hear of each path once.
type watchers map[string]map[*peer]bool

func (w watchers) add(path string, p *peer) {
	if w[path] == nil {
		w[path] = make(map[*peer]bool)
	}
	w[path][p] = true
}

// A peer is one connection as the server sees it.
type peer struct {
	k       *keeper
	push    func(frame []byte)
	hangUp  func()
	number  int   // guarded by keeper.mu; of its greeting
	session int64 // guarded by keeper.mu; 0: it has none
}

func newKeeper() *keeper {
	return &keeper{
		nodes: map[string]*znode{"/": {}}, sessions: make(map[int64]*zsession), data: make(watchers), children: make(watchers), granted: make(granted),
	}
}

// Codes of errors.
const (
	codeUnimplemented  = -6
	codeNoNode         = -101
	codeBadVersion     = -103
	codeNoEphemeral    = -108 // children of ephemeral nodes
	codeExists         = -110
	codeNotEmpty       = -111
	codeSessionExpired = -112
)

// Kinds of requests.
const (
	opCreate, opDelete, opExists, opGetData, opSetData = 1, 2, 3, 4, 5
	opSync, opPing, opGetChildren2, opMulti            = 9, 11, 12, 14
	opCreateContainer, opSetWatches, opClose           = 19, 101, -11
)

var opNames = map[int32]string{
	opCreate: "create", opDelete: "delete", opExists: "exists", opGetData: "get", opSetData: "set", opSync: "sync",
	opPing: "ping", opGetChildren2: "list", opMulti: "multi", opCreateContainer: "container", opSetWatches: "watches", opClose: "close",
}

// Kinds of events.
const (
	eventCreated, eventDeleted, eventChanged, eventChildren = 1, 2, 3, 4
)

// greet answers the first request of a connection: a session begins, or goes on over it.
func (p *peer) greet(in *jute) []byte {
	k := p.k
	k.mu.Lock()
	defer k.mu.Unlock()
	k.greeted++
	p.number = k.greeted
	in.int() // version
	in.long()
	timeout, id := in.int(), in.long()
	s := k.sessions[id]
	if id != 0 && s == nil {
		return (&jute{}).putInt(0).putInt(0).putLong(0).putBytes(make([]byte, 16)).frame()
	}
	if s == nil {
		k.last++
		id, s = k.last, &zsession{}
		k.sessions[id] = s
	}
	if s.peer != nil && s.peer != p {
		s.peer.leave()
		go s.peer.hangUp()
	}
	s.peer, s.timeout, p.session = p, time.Duration(timeout)*time.Millisecond, id
	k.heard(id)
	return (&jute{}).putInt(0).putInt(timeout).putLong(id).putBytes(make([]byte, 16)).frame()
}

// heard has a session live for its whole timeout from now. Requires k.mu.
func (k *keeper) heard(id int64) {
	s := k.sessions[id]
	s.ends = time.Now().Add(s.timeout)
	if s.end == nil {
		s.end = time.AfterFunc(s.timeout, func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			if now := k.sessions[id]; now == s && !time.Now().Before(s.ends) {
				k.endSession(id)
			}
		})
	} else {
		s.end.Reset(s.timeout)
	}
}

// endSession removes a session's nodes. Requires k.mu.
func (k *keeper) endSession(id int64) {
	s := k.sessions[id]
	s.end.Stop()
	delete(k.sessions, id)
	k.zxid++
	for _, path := range slices.Sorted(maps.Keys(k.nodes)) {
		if k.nodes[path].owner == id {
			k.remove(path)
		}
	}
	k.grant()
	s.peer.leave()
	go s.peer.hangUp()
}

// close: the connection is gone; its session lives on.
func (p *peer) close() {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	p.leave()
}

// leave takes the connection's watches back. Requires k.mu.
func (p *peer) leave() {
	for _, w := range []watchers{p.k.data, p.k.children} {
		for _, peers := range w {
			delete(peers, p)
		}
	}
}

// serve answers a request; nil: the connection ends without an answer.
func (p *peer) serve(in *jute) []byte {
	k := p.k
	k.mu.Lock()
	defer k.mu.Unlock()
	number, op := in.int(), in.int()
	if s := k.sessions[p.session]; s == nil || s.peer != p {
		go p.hangUp()
		return nil
	}
	k.heard(p.session)
	if op == opClose {
		k.endSession(p.session)
		return zreply(number, k.zxid, 0, nil)
	}
	body, code := p.do(op, in)
	k.grant()
	return zreply(number, k.zxid, code, body)
}

func zreply(number int32, zxid int64, code int32, body *jute) []byte {
	out := (&jute{}).putInt(number).putLong(zxid).putInt(code)
	if code == 0 && body != nil {
		out.b = append(out.b, body.b...)
	}
	return out.frame()
}

// do serves what is asked for.
func (p *peer) do(op int32, in *jute) (*jute, int32) {
	k := p.k
	switch op {
	case opPing:
		return nil, 0
	case opSync:
		return (&jute{}).putString(in.string()), 0
	case opMulti:
		return p.multi(in)
	case opSetWatches:
		p.setWatches(in)
		return nil, 0
	case opCreate, opCreateContainer, opDelete, opSetData:
		k.zxid++
		return p.write(op, in, apply)
	case opExists, opGetData, opGetChildren2:
		return p.read(op, in)
	}
	return nil, codeUnimplemented
}

func (p *peer) read(op int32, in *jute) (*jute, int32) {
	k, path, watch := p.k, in.string(), in.bool()
	n := k.nodes[path]
	if watch && (n != nil || op == opExists) {
		if op == opGetChildren2 {
			k.children.add(path, p)
		} else {
			k.data.add(path, p)
		}
	}
	switch {
	case n == nil:
		return nil, codeNoNode
	case op == opExists:
		return (&jute{}).putStat(n), 0
	case op == opGetData:
		return (&jute{}).putBytes(n.data).putStat(n), 0
	}
	names := k.childrenOf(path)
	out := (&jute{}).putInt(int32(len(names)))
	for _, name := range names {
		out.putString(name)
	}
	return out.putStat(n), 0
}

func (k *keeper) childrenOf(path string) (names []string) {
	before := strings.TrimSuffix(path, "/") + "/"
	for other := range k.nodes {
		if name, ok := strings.CutPrefix(other, before); ok && name != "" && !strings.Contains(name, "/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func parent(path string) string {
	return cmp.Or(path[:strings.LastIndexByte(path, '/')], "/")
}

// apply makes a change, and pass does not.
func apply(change func()) { change() }
func pass(func())         {}

// write serves one that changes something, by do once it is known that it may.
func (p *peer) write(op int32, in *jute, do func(change func())) (*jute, int32) {
	k := p.k
	switch op {
	case opCreate, opCreateContainer:
		path, data := in.string(), in.bytes()
		for range in.int() { // who may do what
			in.int()
			in.string()
			in.string()
		}
		return p.create(path, data, in.int(), op == opCreateContainer, do)
	case opDelete:
		path, version := in.string(), in.int()
		n := k.nodes[path]
		switch {
		case n == nil:
			return nil, codeNoNode
		case version != -1 && version != n.version:
			return nil, codeBadVersion
		case n.childCount > 0:
			return nil, codeNotEmpty
		}
		do(func() { k.remove(path) })
		return nil, 0
	}
	path, data, version := in.string(), in.bytes(), in.int()
	n := k.nodes[path]
	switch {
	case n == nil:
		return nil, codeNoNode
	case version != -1 && version != n.version:
		return nil, codeBadVersion
	}
	do(func() {
		n.data, n.changed = data, k.zxid
		n.version++
		k.tell(k.data, path, eventChanged)
	})
	return (&jute{}).putStat(n), 0
}

func (p *peer) create(path string, data []byte, flags int32, withStat bool, do func(change func())) (*jute, int32) {
	k := p.k
	above := k.nodes[parent(path)]
	if above == nil {
		return nil, codeNoNode
	}
	if flags&2 != 0 && flags < 4 {
		path += fmt.Sprintf("%010d", above.creates)
	}
	switch {
	case k.nodes[path] != nil:
		return nil, codeExists
	case above.owner != 0:
		return nil, codeNoEphemeral
	}
	n := &znode{data: data, created: k.zxid, changed: k.zxid, childChange: k.zxid}
	if flags&1 != 0 {
		n.owner = p.session
	}
	do(func() {
		k.nodes[path] = n
		above.creates++
		above.childCount++
		above.childChange = k.zxid
		k.tell(k.data, path, eventCreated)
		k.tell(k.children, parent(path), eventChildren)
	})
	out := (&jute{}).putString(path)
	if withStat {
		out.putStat(n)
	}
	return out, 0
}

// remove requires k.mu.
func (k *keeper) remove(path string) {
	delete(k.nodes, path)
	above := k.nodes[parent(path)]
	above.childCount--
	above.childChange = k.zxid
	for p := range k.children[path] {
		k.data.add(path, p) // one event for both
	}
	delete(k.children, path)
	k.tell(k.data, path, eventDeleted)
	k.tell(k.children, parent(path), eventChildren)
}

// tell sends an event to all who want to hear of it, once. Requires k.mu.
func (k *keeper) tell(w watchers, path string, kind int32) {
	all := slices.SortedFunc(maps.Keys(w[path]), func(a, b *peer) int { return cmp.Compare(a.number, b.number) })
	delete(w, path)
	for _, p := range all {
		p.tell(path, kind)
	}
}

func (p *peer) tell(path string, kind int32) {
	const connected = 3
	p.push((&jute{}).putInt(-1).putLong(-1).putInt(0).putInt(kind).putInt(connected).putString(path).frame())
}

// multi does all or nothing, one after the other.
func (p *peer) multi(in *jute) (*jute, int32) {
	k := p.k
	k.zxid++
	ops, answers, failed, code := p.copied().all(&jute{in.b})
	if failed < 0 {
		ops, answers, failed, code = p.all(in)
	}
	out := &jute{}
	for i, op := range ops {
		switch {
		case failed < 0:
			out.putInt(op).putBool(false).putInt(0)
			if answers[i] != nil {
				out.b = append(out.b, answers[i].b...)
			}
		case i < failed:
			out.putInt(-1).putBool(false).putInt(0).putInt(0)
		case i == failed:
			out.putInt(-1).putBool(false).putInt(code).putInt(code)
		default:
			const inconsistent = -2 // not looked at
			out.putInt(-1).putBool(false).putInt(inconsistent).putInt(inconsistent)
		}
	}
	return out.putInt(-1).putBool(true).putInt(-1), 0
}

// all does what stands in a transaction up to the first that fails; -1: none does.
func (p *peer) all(in *jute) (ops []int32, answers []*jute, failed int, code int32) {
	failed = -1
	do := apply
	for op, done := in.int(), in.bool(); !done; op, done = in.int(), in.bool() {
		in.int()
		answer, err := p.write(op, in, do)
		if err != 0 && failed < 0 {
			failed, code, do = len(ops), err, pass
		}
		ops, answers = append(ops, op), append(answers, answer)
	}
	return ops, answers, failed, code
}

// copied is the connection at a copy of the keeper, of whose changes nobody hears. Requires k.mu.
func (p *peer) copied() *peer {
	k := &keeper{zxid: p.k.zxid, nodes: make(map[string]*znode)}
	for path, n := range p.k.nodes {
		one := *n
		k.nodes[path] = &one
	}
	return &peer{k: k, session: p.session}
}

// setWatches brings the watches of the connection before, and tells what was missed.
func (p *peer) setWatches(in *jute) {
	k, since := p.k, in.long()
	for range in.int() {
		path := in.string()
		switch n := k.nodes[path]; {
		case n == nil:
			p.tell(path, eventDeleted)
		case n.changed > since:
			p.tell(path, eventChanged)
		default:
			k.data.add(path, p)
		}
	}
	for range in.int() {
		if path := in.string(); k.nodes[path] != nil {
			p.tell(path, eventCreated)
		} else {
			k.data.add(path, p)
		}
	}
	for range in.int() {
		path := in.string()
		switch n := k.nodes[path]; {
		case n == nil:
			p.tell(path, eventDeleted)
		case n.childChange > since:
			p.tell(path, eventChildren)
		default:
			k.children.add(path, p)
		}
	}
}

// jute is ZooKeeper's way to write records, being written or read.
type jute struct{ b []byte }

func (j *jute) take(n int) []byte {
	b := j.b[:n]
	j.b = j.b[n:]
	return b
}

func (j *jute) int() int32  { return int32(binary.BigEndian.Uint32(j.take(4))) }
func (j *jute) long() int64 { return int64(binary.BigEndian.Uint64(j.take(8))) }
func (j *jute) bool() bool  { return j.take(1)[0] != 0 }
func (j *jute) bytes() []byte {
	n := j.int()
	if n < 0 {
		return nil
	}
	return slices.Clone(j.take(int(n)))
}
func (j *jute) string() string { return string(j.bytes()) }

func (j *jute) putInt(n int32) *jute {
	j.b = binary.BigEndian.AppendUint32(j.b, uint32(n))
	return j
}

func (j *jute) putLong(n int64) *jute {
	j.b = binary.BigEndian.AppendUint64(j.b, uint64(n))
	return j
}

func (j *jute) putBool(v bool) *jute {
	one := byte(0)
	if v {
		one = 1
	}
	j.b = append(j.b, one)
	return j
}

func (j *jute) putBytes(b []byte) *jute {
	if b == nil {
		return j.putInt(-1)
	}
	j.putInt(int32(len(b)))
	j.b = append(j.b, b...)
	return j
}

func (j *jute) putString(s string) *jute { return j.putBytes([]byte(s)) }

func (j *jute) putStat(n *znode) *jute {
	return j.putLong(n.created).putLong(n.changed).putLong(0).putLong(0).putInt(n.version).putInt(2*n.creates - n.childCount).putInt(0).
		putLong(n.owner).putInt(int32(len(n.data))).putInt(n.childCount).putLong(n.childChange)
}

// frame is what was written, with its length before it.
func (j *jute) frame() []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(j.b))), j.b...)
}
