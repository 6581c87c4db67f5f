package caslock

import (
	"bytes"
)

// heard takes in a change of a name of two parts.
func (q *crowd) heard(first, second string, i Item, session uint64) {
	if first == "" {
		q.heardBeat(second, q.d.number(i.Version))
		return
	}
	q.disown(i, second)
	s := q.d.seen(first)
	if s == nil {
		return
	}
	s.mu.Lock()
	l := s.line
	s.mu.Unlock()
	if l == nil || l.session != session { // nobody here waits for that
		return
	}
	number := q.d.number(i.Version)
	p := q.placeIn(i, second)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line != l {
		return
	}
	was := l.byID[second]
	l.put(second, p, number)
	l.upTo = max(l.upTo, number)
	if ch := s.awaited[second]; ch != nil {
		close(ch)
		delete(s.awaited, second)
	}
	if p == nil {
		if l.loaded {
			s.wakeNext()
		}
		if was != nil { // it is to queue anew, unless that was its own doing
			s.wake(was.claim.Owner)
		}
	}
}

// disown has a place of this process be removed that none of its waiters wants: it came after it was left.
func (q *crowd) disown(i Item, id string) {
	if !bytes.Contains(i.Value, []byte(q.process)) { // most are of others, and need not be decoded
		return
	}
	p := q.placeIn(i, id)
	q.mu.Lock()
	defer q.mu.Unlock()
	if p.process == q.process && q.mine[i.Name] == nil {
		q.owed[i.Name] = never
		q.begins()
	}
}

// heardBeat counts beats.
func (q *crowd) heardBeat(process string, number uint64) {
	q.mu.Lock()
	died := false
	if process != q.process {
		if p := q.peers[process]; p != nil {
			p.silent.Store(0)
		}
	} else {
		q.heardOf = max(q.heardOf, number)
		for name, p := range q.peers {
			if name == q.process {
				continue
			}
			switch n := p.silent.Add(1); {
			case n == silentFor:
				died = true
			case n > 100*silentFor:
				delete(q.peers, name)
			}
		}
	}
	q.mu.Unlock()
	if !died {
		return
	}
	for s := range q.all() {
		s.mu.Lock()
		s.wakeNext()
		s.mu.Unlock()
	}
}

// recount has beats be counted from now on, by one who has not listened for a while.
func (q *crowd) recount() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range q.peers {
		p.silent.Store(0)
	}
}

// unheard has those who wait for a watch that has ended go on. What it has counted stays: else nobody would ever be dead
// where it ends again and again.
func (q *crowd) unheard() {
	for s := range q.all() {
		s.mu.Lock()
		for id, ch := range s.awaited {
			close(ch)
			delete(s.awaited, id)
		}
		s.mu.Unlock()
	}
}
