package zklock

import (
	"errors"
	"sync"

	"github.com/go-zookeeper/zk"
)

// watches are the nodes whose events a session wants. It sets one watch for each, however many
// claims listen. go-zookeeper cannot remove a watch, so more would pile up on a node that stays.
type watches struct {
	mu sync.Mutex
	of map[string]*watch // guarded by mu; by path, or childrenOf(path)

	client clientWatches
}

// A watch is for the first event of one node, or of its children.
type watch struct {
	armed  bool            // the ensemble will report the event
	alarms map[*alarm]bool // rung by the event
}

// An alarm is rung at most once, by the client's own goroutine. ring must not block. deleted says
// whether the node was deleted.
type alarm struct {
	once sync.Once
	ring func(deleted bool)
}

// listen rings a at the first event of the node at path. It returns the content of the node, unless
// another alarm listens to it already. errGone means that the node does not exist.
func (w *watches) listen(client *zk.Conn, path string, a *alarm) (seen content, err error) {
	if w.add(path, a) {
		return content{}, nil
	}
	err = w.ask(path, a, func() (err error) {
		seen.data, seen.stat, _, err = client.GetW(path)
		return err
	})
	if err != nil {
		return content{}, err
	}
	return seen, nil
}

// children rings a when children of the node at path come or go. It returns their names and the
// node's stat. errGone means that the node does not exist.
func (w *watches) children(client *zk.Conn, path string, a *alarm) (names []string, stat *zk.Stat, err error) {
	key := childrenOf(path)
	list := func() (err error) { names, stat, _, err = client.ChildrenW(path); return err }
	if w.add(key, a) {
		list = func() (err error) { names, stat, err = client.Children(path); return err }
	}
	err = w.ask(key, a, list)
	return names, stat, err
}

// exists rings a when a node at path comes, goes or changes. It reports whether it exists.
func (w *watches) exists(client *zk.Conn, path string, a *alarm) (there bool, err error) {
	question := func() (err error) { there, _, _, err = client.ExistsW(path); return err }
	if w.add(path, a) {
		question = func() (err error) { there, _, err = client.Exists(path); return err }
	}
	err = w.ask(path, a, question)
	return there, err
}

// ask sends the question. The alarm was added before, so an event that comes with the answer rings
// it.
func (w *watches) ask(key string, a *alarm, question func() error) error {
	err := question()
	switch {
	case errors.Is(err, zk.ErrNoNode):
		w.forget(key, a)
		return errGone
	case err != nil:
		w.forget(key, a)
		return explain(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := w.of[key]; at != nil && at.alarms[a] { // otherwise it has rung
		at.armed = true
	}
	return nil
}

// childrenOf is the key of the watch on the children of the node at path. No path ends that way.
func childrenOf(path string) string { return path + "/" }

var errGone = errors.New("zklock: no such node")

// add adds an alarm, and reports whether the watch is armed already.
func (w *watches) add(path string, a *alarm) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.of[path]
	if at == nil {
		at = &watch{alarms: make(map[*alarm]bool, 1)}
		w.of[path] = at
	}
	at.alarms[a] = true
	return at.armed
}

// forget removes an alarm.
func (w *watches) forget(path string, a *alarm) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.of[path]
	if at == nil {
		return
	}
	delete(at.alarms, a)
	if len(at.alarms) == 0 && !at.armed {
		delete(w.of, path)
	}
}

// event rings the alarms on a node, or on its children.
func (w *watches) event(e zk.Event) {
	if e.Type != zk.EventNodeChildrenChanged {
		w.take(e.Path).ring(e.Type == zk.EventNodeDeleted)
	}
	if e.Type == zk.EventNodeChildrenChanged || e.Type == zk.EventNodeDeleted {
		w.take(childrenOf(e.Path)).ring(false)
	}
}

// take removes and returns the watch of that key; nil: there is none.
func (w *watches) take(key string) *watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.of[key]
	delete(w.of, key)
	return at
}

// end rings all alarms, because the watches end with the session.
func (w *watches) end() {
	w.mu.Lock()
	all := w.of
	w.of = make(map[string]*watch)
	w.mu.Unlock()
	w.client.end()
	for _, at := range all {
		at.ring(false)
	}
}

func (w *watch) ring(deleted bool) {
	if w == nil {
		return
	}
	for a := range w.alarms {
		a.once.Do(func() { a.ring(deleted) })
	}
}

// clientWatches are the watches that go-zookeeper has. On a new connection it sets all of them
// again, also those that no claim waits for any more, and does not say whether it has any. Each
// change is noted before the client makes the same one.
type clientWatches struct {
	mu sync.Mutex
	of map[clientWatch]bool // guarded by mu
}

// A clientWatch is a watch on a node that exists (opGetData), on one that does not (opExists), or on
// a node's children (opGetChildren2).
type clientWatch struct {
	kind int32
	path string
}

// set notes the answer to a request of that kind that sets a watch. code is the answer's error.
func (w *clientWatches) set(kind int32, path string, code int32) {
	switch {
	case kind == opExists && code == noNode:
	case code != 0:
		return
	case kind == opExists:
		kind = opGetData
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = make(map[clientWatch]bool)
	}
	w.of[clientWatch{kind, path}] = true
}

// fire removes the watches that an event ends.
func (w *clientWatches) fire(event zk.EventType, path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if event != zk.EventNodeChildrenChanged {
		delete(w.of, clientWatch{opGetData, path})
		delete(w.of, clientWatch{opExists, path})
	}
	if event == zk.EventNodeChildrenChanged || event == zk.EventNodeDeleted {
		delete(w.of, clientWatch{opGetChildren2, path})
	}
}

// any reports whether the client has a watch.
func (w *clientWatches) any() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.of) > 0
}

// end removes all, because the watches end with the session.
func (w *clientWatches) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.of)
}
