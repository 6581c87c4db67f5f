package caslock

import (
	"bytes"
)

// heard handles a change of a name of two parts.
func (q *crowd) heard(first, second string, i Item, session uint64) {
	if first == "" {
		if i.Value != nil { // otherwise the store has forgotten the last one of a process
			q.heardBeat(second, q.d.number(i.Version))
		}
		return
	}
	q.disown(i)
	s := q.d.seen(first)
	if s == nil {
		return
	}
	s.mu.Lock()
	lined, wanting := s.line != nil && s.line.session == session, len(s.wanting) > 0
	s.mu.Unlock()
	if wanting && i.Value != nil {
		owner := storedIn(i).Claim.Owner
		s.mu.Lock()
		wanted := s.wanted(owner)
		s.mu.Unlock()
		q.d.recall(wanted)
	}
	if !lined { // placeIn would keep a peer whose heartbeats nobody here counts
		return
	}
	p, number := q.placeIn(i), q.d.number(i.Version)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line != nil && s.line.session == session {
		s.heardPlace(second, p, number)
	}
}

// heardPlace records a change of a place in the line; nil: it was removed. Requires s.mu.
func (s *resource) heardPlace(id string, p *place, number uint64) {
	l := s.line
	was := l.byID[id]
	l.put(id, p, number)
	l.upTo = max(l.upTo, number)
	if ch := s.awaited[id]; ch != nil {
		close(ch)
		delete(s.awaited, id)
	}
	if p == nil {
		if l.loaded {
			s.wakeNext()
		}
		if was != nil { // its owner must queue again, unless it removed the place itself
			s.wake(was.claim.Owner)
		}
	}
}

// disown schedules the removal of a place of this process that none of its waiters wants: it
// appeared after it was left.
func (q *crowd) disown(i Item) {
	if !bytes.Contains(i.Value, []byte(q.process)) { // most places belong to other processes, and need not be decoded
		return
	}
	process := storedIn(i).Process
	q.mu.Lock()
	defer q.mu.Unlock()
	if process == q.process && q.mine[i.Name] == nil {
		q.pending[i.Name] = never
		q.startBeats()
	}
}

// heardBeat counts a heartbeat.
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

// recount restarts the counts after the watch was off for a while.
func (q *crowd) recount() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range q.peers {
		p.silent.Store(0)
	}
}

// unheard wakes those who wait for a watch that has ended. The counts stay: otherwise no process
// would ever count as dead while the watch ends repeatedly.
func (q *crowd) unheard() {
	for s := range q.all() {
		s.mu.Lock()
		s.unheard()
		s.mu.Unlock()
	}
}

// unheard wakes those who wait until the line has their places. Requires s.mu.
func (s *resource) unheard() {
	for _, ch := range s.awaited {
		close(ch)
	}
	clear(s.awaited)
}
