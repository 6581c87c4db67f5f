package zklock

import (
	"errors"
	"sync"

	"github.com/go-zookeeper/zk"
)

// watches are the nodes that a driver wants to hear of. The ensemble is asked once for each,
// however many claims listen: go-zookeeper cannot take a watch back, so that they would pile
// up on a node that stays.
type watches struct {
	mu sync.Mutex
	of map[string]*watch // guarded by mu; by path, or by childrenOf it
}

// A watch is on one node, or its children, until its first event.
type watch struct {
	armed  bool            // the ensemble will tell
	alarms map[*alarm]bool // those who listen
}

// An alarm is rung at most once, by the client's own goroutine: it must not block. It is told
// whether the node was deleted.
type alarm struct {
	once sync.Once
	ring func(deleted bool)
}

// listen has a ring at the first event of the node at path. errGone: there is no such node.
// It returns what the node contains, unless somebody listens to it already.
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

// children has a ring when children of the node at path come or go, and returns their names and what the ensemble says
// about the node. errGone: there is no such node.
func (w *watches) children(client *zk.Conn, path string, a *alarm) (names []string, stat *zk.Stat, err error) {
	key := childrenOf(path)
	list := func() (err error) { names, stat, _, err = client.ChildrenW(path); return err }
	if w.add(key, a) {
		list = func() (err error) { names, stat, err = client.Children(path); return err }
	}
	err = w.ask(key, a, list)
	return names, stat, err
}

// exists has a ring when a node at path comes, goes or changes, and reports whether it is there.
func (w *watches) exists(client *zk.Conn, path string, a *alarm) (there bool, err error) {
	question := func() (err error) { there, _, _, err = client.ExistsW(path); return err }
	if w.add(path, a) {
		question = func() (err error) { there, _, err = client.Exists(path); return err }
	}
	err = w.ask(path, a, question)
	return there, err
}

// ask asks the ensemble. The alarm is in place: an event that comes with the answer rings it.
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
	if at := w.of[key]; at != nil && at.alarms[a] { // else it has rung
		at.armed = true
	}
	return nil
}

// childrenOf is the key of the watch on the children of the node at path. No path ends that way.
func childrenOf(path string) string { return path + "/" }

var errGone = errors.New("zklock: no such node")

// add reports whether the ensemble is asked already.
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

// forget keeps a from being rung for path.
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

// any reports whether the ensemble was asked to tell of a node.
func (w *watches) any() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.of {
		if at.armed {
			return true
		}
	}
	return false
}

// event rings those who listen to a node, or to its children.
func (w *watches) event(e zk.Event) {
	if e.Type != zk.EventNodeChildrenChanged {
		w.take(e.Path).ring(e.Type == zk.EventNodeDeleted)
	}
	if e.Type == zk.EventNodeChildrenChanged || e.Type == zk.EventNodeDeleted {
		w.take(childrenOf(e.Path)).ring(false)
	}
}

// take returns the watch of that key, which is over; nil: there is none.
func (w *watches) take(key string) *watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.of[key]
	delete(w.of, key)
	return at
}

// end rings everybody: the session is over, and with it all watches.
func (w *watches) end() {
	w.mu.Lock()
	all := w.of
	w.of = make(map[string]*watch)
	w.mu.Unlock()
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
