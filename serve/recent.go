package serve

import "time"

// A recent remembers a value of each lease for at least keepEnds, unless mostEnds newer ones come.
// There are two generations, of which the older is forgotten next.
type recent[V any] struct {
	now, before map[lease]V
	turned      time.Time // when now began
}

func (r *recent[V]) put(l lease, v V) {
	if r.now[l] = v; len(r.now) >= mostEnds {
		r.next(time.Now())
	}
}

func (r *recent[V]) get(l lease) (v V, ok bool) {
	if v, ok = r.now[l]; !ok {
		v, ok = r.before[l]
	}
	return v, ok
}

func (r *recent[V]) delete(l lease) {
	delete(r.now, l)
	delete(r.before, l)
}

// turnOver starts the next generation if this one is old enough.
func (r *recent[V]) turnOver(now time.Time) {
	if now.Sub(r.turned) > keepEnds {
		r.next(now)
	}
}

func (r *recent[V]) next(now time.Time) { r.now, r.before, r.turned = make(map[lease]V), r.now, now }
