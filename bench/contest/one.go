package contest

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

const contendPart = "contend"

// Processes is the number of processes that Engine.Processes starts for each lock. Workers is the
// number of goroutines in each.
const (
	Processes = 8
	Workers   = 4
)

const contention = 1500 * time.Millisecond

// OneProcess measures one lock that 64 goroutines of one process want. The others are compared with
// the first of names, which is Leasehold.
func (e *Engine) OneProcess(b *testing.B, addr string, names ...string) *Series {
	lockers := e.openAll(b, addr, names)
	s := Compare(b, e.title("One key, one process, 64 goroutines"), names, 3, func(name string, round int) (Tally, error) {
		return Contend(lockers[name], fmt.Sprint("one/", round), 64, contention)
	})
	s.contended(names, 1)
	return s
}

// Processes measures one lock that goroutines of several processes want. The others are compared
// with the first of names, which is Leasehold.
func (e *Engine) Processes(b *testing.B, addr string, names ...string) *Series {
	title := e.title(fmt.Sprintf("One key, %d processes of %d goroutines", Processes, Workers))
	s := Compare(b, title, names, 3, func(name string, round int) (Tally, error) {
		return contendInProcesses(b, order{
			Addr: addr, Lock: name, Name: fmt.Sprint("processes/", round),
			Path: filepath.Join(b.TempDir(), "section"), Workers: Workers, Lasts: contention,
		}, Processes)
	})
	s.contended(names, Workers)
	return s
}

// contendInProcesses runs contend in n processes at the same time.
func contendInProcesses(tb testing.TB, o order, n int) (Tally, error) {
	var children []*child
	for i := range n {
		o.Number = i
		c := startChild(tb, contendPart, o)
		defer c.end()
		children = append(children, c)
	}
	var ready bool
	for _, c := range children {
		c.hear(&ready)
	}
	for _, c := range children {
		c.tell("go")
	}
	all := Tally{Server: -1}
	for _, c := range children {
		var t Tally
		c.hear(&t)
		all.add(t)
	}
	s, unmap, err := shareSection(o.Path)
	if err != nil {
		return all, err
	}
	defer unmap()
	all.Turns, all.ProcessTurns = s.turns.Load(), s.processTurns.Load()
	return all, s.excluded(all.Sections())
}

func contend(p *parent, o order, l *Locker) error {
	if _, err := Cycle(l.Lock, fmt.Sprint("warm/", o.Number), &Section{}, 10); err != nil {
		return err
	}
	s, unmap, err := shareSection(o.Path)
	if err != nil {
		return err
	}
	defer unmap()
	c := oneSection(l, o.Name, s, o.Workers, o.Lasts)
	c.process = o.Number
	if err := p.tell(true); err != nil {
		return err
	}
	p.wait()
	got, err := c.run()
	err = errors.Join(err, p.tell(got))
	p.wait()
	return err
}
