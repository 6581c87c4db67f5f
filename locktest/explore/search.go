package explore

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
)

// A point is an event of a schedule, with the actions that could have been chosen.
type point struct {
	label  string
	others []action
}

// A plan is the policy that makes given changes, where they are possible. It records the points
// after the last of them.
type plan struct {
	changes []change
	done    int // number of changes made
	points  []point
}

func (p *plan) made() []change { return p.changes }

func (p *plan) choose(label string, others []action) action {
	i := slices.IndexFunc(p.changes, func(c change) bool { return c.label == label })
	if i >= 0 && slices.Contains(others, p.changes[i].action) {
		p.done++
		return p.changes[i].action
	}
	if p.done == len(p.changes) {
		p.points = append(p.points, point{label, others})
	}
	return pass
}

// A dice is the policy that makes changes at random. Most faults need two changes at about the same
// time. So another change is more likely for some events after one.
type dice struct {
	rng     *rand.Rand
	chance  func(label string) float64
	after   nearness
	left    int
	near    int // number of events for which a change is more likely
	changes []change
}

// A nearness is the number of events after a change for which another one is more likely, with its
// probability.
type nearness struct {
	events int
	chance float64
}

// nearnesses cover faults during a lasting condition, and faults within a few messages.
var nearnesses = []nearness{{40, 0.05}, {10, 0.2}}

func (d *dice) made() []change { return d.changes }

func (d *dice) choose(label string, others []action) action {
	chance := d.chance(label)
	if d.near > 0 {
		chance = max(chance, d.after.chance)
		d.near--
	}
	if d.left == 0 || d.rng.Float64() > chance {
		return pass
	}
	d.left--
	d.near = d.after.events
	a := d.pick(others)
	d.changes = append(d.changes, change{label, a})
	return a
}

// pick chooses at random: either among all actions, or first a kind of action and then an action of
// it. Otherwise kinds with many actions would always dominate.
func (d *dice) pick(others []action) action {
	if d.rng.IntN(2) == 0 {
		return others[d.rng.IntN(len(others))]
	}
	kinds := make(map[string][]action)
	var names []string
	for _, a := range others {
		kind, _, _ := strings.Cut(string(a), " ")
		if kinds[kind] == nil {
			names = append(names, kind)
		}
		kinds[kind] = append(kinds[kind], a)
	}
	of := kinds[names[d.rng.IntN(len(names))]]
	return of[d.rng.IntN(len(of))]
}

// A search tries the schedules of one scenario.
type search struct {
	t        *testing.T
	harness  *Harness
	scenario scenario
	states   map[uint64]struct{}
	seen     map[uint64]struct{} // traces whose schedules were continued
	plain    map[string]int      // number of points of each kind in the schedule without changes
	figures  figures
}

func newSearch(t *testing.T, h Harness, sc scenario) *search {
	return &search{t: t, harness: &h, scenario: sc, states: make(map[uint64]struct{})}
}

// A finding is a schedule that breaks a promise.
type finding struct {
	changes   []change
	violation string
}

// search tries all schedules with few changes, then random ones with more.
func (s *search) search() {
	start := time.Now()
	found := s.inOrder()
	if found == nil {
		found = s.atRandom()
	}
	s.figures.states, s.figures.took = len(s.states), time.Since(start)
	s.t.Log(s.figures)
	if found != nil {
		s.report(found)
	} else if *flagFigures != "" {
		s.figures.write(s.t, *flagFigures, s.harness.Name, s.scenario)
	}
}

// inOrder tries all schedules with few changes, those with fewer first.
func (s *search) inOrder() *finding {
	for n := 0; n <= max(s.harness.Changes, 0); n++ {
		s.seen = make(map[uint64]struct{})
		if found := s.deepen(nil, n); found != nil {
			return found
		}
		s.figures.complete, s.figures.within = n, s.figures.schedules
	}
	return nil
}

// deepen tries the schedules with changes and n more after them. If two schedules differ only in
// the order of independent events, it continues only one of them.
func (s *search) deepen(changes []change, n int) *finding {
	p := &plan{changes: changes}
	r, found := s.play(p)
	if len(changes) == 0 {
		s.plain = make(map[string]int)
		for _, at := range p.points {
			s.plain[kindOf(at.label)]++
		}
	}
	switch {
	case found != nil || n == 0:
		return found
	case p.done < len(changes):
		s.figures.diverged++
		return nil
	}
	if _, before := s.seen[r.trace]; before {
		for _, at := range p.points {
			s.figures.skipped += len(at.others)
		}
		return nil
	}
	s.seen[r.trace] = struct{}{}
	for _, at := range p.points {
		for _, a := range at.others {
			if found := s.deepen(append(slices.Clone(changes), change{at.label, a}), n-1); found != nil {
				return found
			}
		}
	}
	return nil
}

// kindOf returns a label without its numbers.
func kindOf(label string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, label)
}

// play runs one schedule.
func (s *search) play(p policy) (result, *finding) {
	r := play(s.t, s.harness, &s.scenario, p, s.states, false)
	s.figures.schedules++
	s.figures.events += r.events
	if r.violation == "" {
		return r, nil
	}
	return r, &finding{p.made(), r.violation}
}

// atRandom tries random schedules with two to five changes.
func (s *search) atRandom() *finding {
	s.figures.seed = cmp.Or(*flagSeed, rand.Uint64())
	for n, end := uint64(0), time.Now().Add(s.harness.For); time.Now().Before(end); n++ {
		rng := rand.New(rand.NewPCG(s.figures.seed, n))
		changes := 2 + rng.IntN(4)
		_, found := s.play(&dice{
			rng: rng, left: changes, chance: s.chance(changes, rng.IntN(2) == 0), after: nearnesses[rng.IntN(len(nearnesses))],
		})
		s.figures.random++
		if found != nil {
			return found
		}
	}
	return nil
}

// chance returns the probability of a change at an event, for a schedule with the given number of
// changes. It is equal for all events, or for all kinds of events, because some kinds occur once
// and others all the time.
func (s *search) chance(changes int, byKind bool) func(label string) float64 {
	points := 0
	for _, n := range s.plain {
		points += n
	}
	return func(label string) float64 {
		if byKind && points > 0 {
			return float64(changes) / float64(len(s.plain)*max(s.plain[kindOf(label)], 1))
		}
		return float64(changes) / float64(max(points, 10))
	}
}

// report prints a schedule that breaks a promise, with only the changes that it needs.
func (s *search) report(f *finding) {
	f.changes = s.shrink(f.changes)
	r, _ := s.again(f.changes)
	if r.violation == "" {
		s.t.Errorf("%s\nbut not when the same changes are made again: %s", f.violation, f.encode(s.scenario.name))
		return
	}
	s.t.Errorf("%s\n%s\nSee it again by -run '%s' -explore.replay '%s'", r.violation,
		strings.Join(r.log, "\n"), s.t.Name(), f.encode(s.scenario.name))
}

// shrink removes changes that are not needed.
func (s *search) shrink(changes []change) []change {
	for i := 0; i < len(changes); {
		fewer := slices.Delete(slices.Clone(changes), i, i+1)
		if r, _ := s.again(fewer); r.violation == "" {
			i++
		} else {
			changes = fewer
		}
	}
	return changes
}

// again runs a schedule up to a few times until it breaks a promise, because the core's waits are
// random. all means that one of the runs has made all of the changes.
func (s *search) again(changes []change) (r result, all bool) {
	for range 4 {
		p := &plan{changes: changes}
		r = play(s.t, s.harness, &s.scenario, p, nil, true)
		all = all || p.done == len(changes)
		if r.violation != "" {
			break
		}
	}
	return r, all
}

// encode writes a schedule in the form that replay reads.
func (f *finding) encode(scenario string) string {
	text := []string{scenario}
	for _, c := range f.changes {
		text = append(text, c.String())
	}
	return strings.Join(text, "; ")
}

// decode is the reverse of encode.
func decode(text string) (scenario string, changes []change, err error) {
	parts := strings.Split(text, "; ")
	for _, part := range parts[1:] {
		label, a, ok := strings.Cut(part, " = ")
		if !ok {
			return "", nil, fmt.Errorf("%q is no change: want EVENT = ACTION", part)
		}
		changes = append(changes, change{label, action(a)})
	}
	return parts[0], changes, nil
}

// replay runs one schedule and prints its events. It fails if an event does not occur, or its action
// is not possible there, because the schedule then shows nothing.
func replay(t *testing.T, h Harness, text string) {
	name, changes, err := decode(text)
	i := slices.IndexFunc(scenarios, func(sc scenario) bool { return sc.name == name })
	if err != nil || i < 0 {
		t.Fatalf("no scenario %q: %v", name, err)
	}
	s := newSearch(t, h, scenarios[i])
	r, all := s.again(changes)
	t.Logf("%s\n%s", text, strings.Join(r.log, "\n"))
	switch {
	case r.violation != "":
		t.Error(r.violation)
	case !all:
		t.Errorf("%s: some of its changes were not made, so it shows nothing", text)
	}
}
