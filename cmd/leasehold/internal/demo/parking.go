package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/spf13/pflag"
)

// Parking is a garage. Each bay is a resource, and a gate lets in a limited number of cars at once.
// A car takes the first free bay, and drives on if a bay is taken.
type Parking struct {
	Cars      int `json:"cars"`
	Bays      int `json:"bays"`
	Most      int `json:"most"` // largest number of cars inside
	Processes int `json:"processes"`
}

func newParking() *Parking { return &Parking{Cars: 15, Bays: 5, Most: 4, Processes: 3} }

// About implements Scenario.
func (s *Parking) About() About {
	return About{
		Name:  "parking",
		Short: "A garage of many bays, and a gate for a few cars",
		Long: `Park cars in a garage. The gate lets in a limited number at once: each car takes a shared
lease on it. Then the car tries one bay after the other. A bay is an exclusive lease, which
is refused at once if someone has it. Without a lock cars read that the garage has room and
that a bay is free, and end up in the same bay. On stores without shared leases there is no
gate, and only the bays limit the cars.`,
		Examples:   []string{"", "--cars 100 --bays 20 --most 12"},
		Strategies: []Strategy{None, Lock},
		Headline:   fmt.Sprintf("%d cars in %d processes, %d bays, at most %d cars inside", s.Cars, s.Processes, s.Bays, s.Most),
	}
}

// AddFlags implements Scenario.
func (s *Parking) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&s.Cars, "cars", s.Cars, "`N` cars")
	flags.IntVar(&s.Bays, "bays", s.Bays, "`N` bays, each with its own lock")
	flags.IntVar(&s.Most, "most", s.Most, "let in at most `N` cars at once")
	flags.IntVar(&s.Processes, "processes", s.Processes, "`N` processes for the cars")
}

// Check implements Scenario.
func (s *Parking) Check() error {
	return check(bound{"cars", s.Cars, 1, 1000}, bound{"bays", s.Bays, 1, 1000},
		bound{"cars at once", s.Most, 1, s.Bays}, bound{"processes", s.Processes, 1, min(maxProcesses, s.Cars)})
}

// A ParkingResult is the content of the garage's books.
type ParkingResult struct {
	Parked     int     `json:"parked"`
	Collisions int     `json:"collisions"` // cars in a bay with another car
	MostInside int     `json:"most_inside"`
	Lost       int     `json:"lost"`  // cars whose lease ended while they were parked
	Taken      int     `json:"taken"` // answers that a bay is taken
	TakenP50   float64 `json:"taken_p50_ms"`
	TakenP99   float64 `json:"taken_p99_ms"`
	waits
	verdict
}

func (r *ParkingResult) figures() []figure {
	return append([]figure{
		count("cars parked", r.Parked), count("collisions", r.Collisions), count("most cars inside", r.MostInside),
		count(`"somebody else has it"`, r.Taken), span("answered p50", r.TakenP50), span("answered p99", r.TakenP99),
	}, r.waits.figures()...)
}

// taken is the message of a car that was refused a bay.
const taken = "taken"

func (s *Parking) play(ctx context.Context, r *run) (Result, error) {
	statements := []string{
		`CREATE TABLE bays (bay INTEGER PRIMARY KEY, car INTEGER NOT NULL)`, // car is -1 if the bay is free
		`CREATE TABLE events (id ` + serial + `, bay INTEGER NOT NULL, coming INTEGER NOT NULL)`,
	}
	for bay := range s.Bays {
		statements = append(statements, fmt.Sprintf(`INSERT INTO bays VALUES (%d, -1)`, bay))
	}
	if err := r.books.create(ctx, statements...); err != nil {
		return nil, err
	}
	a := newAudience(s.Cars)
	var answers []time.Duration
	err := r.perform(ctx, s.Processes, func(_ *process, m message) error {
		a.gather(r, m)
		switch m.What {
		case taken:
			answers = append(answers, m.Wait)
		case done:
			a.hear(r, m)
			r.progress("%d of %d cars have parked", len(a.all), s.Cars)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	asked := newWaits(answers, 0)
	res := &ParkingResult{Lost: a.numbers[gaveUp], Taken: len(answers), TakenP50: asked.P50, TakenP99: asked.P99, waits: a.waits()}
	if err := s.replay(ctx, r, res); err != nil {
		return nil, err
	}
	gate := r.strategy == None || r.stage.Features.Shared
	res.verdict = judge(
		rule{res.Parked == s.Cars, fmt.Sprintf("%d of %d cars have parked", res.Parked, s.Cars)},
		rule{res.Collisions == 0, fmt.Sprintf("%d cars were put where another was", res.Collisions)},
		rule{res.Lost == 0, fmt.Sprintf("%d cars lost their bay or their place in the garage", res.Lost)},
		rule{!gate || res.MostInside <= s.Most, fmt.Sprintf("%d cars were inside at once, allowed are %d", res.MostInside, s.Most)},
	)
	return res, nil
}

// replay counts over the events in their order. An event has a bay's number when a car comes, and
// its negative when the car leaves.
func (s *Parking) replay(ctx context.Context, r *run, res *ParkingResult) error {
	return r.books.read(ctx, func(tx *tx) error {
		changes, err := tx.numbers(`SELECT (bay + 1) * coming FROM events ORDER BY id`)
		in, inside := make(map[int]int), 0
		for _, bay := range changes {
			if bay < 0 {
				in[-bay]--
				inside--
				continue
			}
			if in[bay] > 0 {
				res.Collisions++
			}
			in[bay]++
			inside++
			res.Parked++
			res.MostInside = max(res.MostInside, inside)
		}
		return err
	})
}

func (s *Parking) work(ctx context.Context, w *worker) error {
	return w.crowd(w.share(s.Cars, s.Processes), func(car int) (message, error) {
		err := s.enter(ctx, w, car)
		if errors.Is(err, errLost) {
			return message{What: done, Number: gaveUp}, nil
		}
		return message{What: done, Number: sold}, err
	})
}

// enter waits at the gate and parks.
func (s *Parking) enter(ctx context.Context, w *worker, car int) error {
	switch {
	case w.locks == nil:
		if err := s.waitForRoom(ctx, w); err != nil {
			return err
		}
	case w.locks.Features().Shared:
		return w.under(ctx, w.Resource+"/gate", func(held context.Context, _ *ticket) error {
			return s.park(held, w, car)
		}, leasehold.Limit(s.Most))
	}
	return s.park(ctx, w, car)
}

// waitForRoom is a gate that only reads and then writes.
func (s *Parking) waitForRoom(ctx context.Context, w *worker) error {
	for {
		inside, err := w.books.number(ctx, nil, `SELECT count(*) FROM bays WHERE car >= 0`)
		if err != nil || inside < s.Most {
			return err
		}
		if err := think(ctx); err != nil {
			return err
		}
	}
}

// park tries the bays in order, again and again.
func (s *Parking) park(ctx context.Context, w *worker, car int) error {
	for {
		for bay := range s.Bays {
			parked, err := s.try(ctx, w, bay, car)
			if parked || err != nil {
				return err
			}
		}
		if err := think(ctx); err != nil {
			return err
		}
	}
}

// try parks in one bay if it is free, and leaves it again.
func (s *Parking) try(ctx context.Context, w *worker, bay, car int) (parked bool, err error) {
	start := time.Now()
	refused := func() (bool, error) {
		return false, w.say(message{What: taken, Wait: time.Since(start)})
	}
	if w.locks == nil {
		free, err := s.look(ctx, w, bay)
		if err != nil {
			return false, err
		}
		if !free {
			return refused()
		}
		return true, s.stay(ctx, w, bay, car, nil)
	}
	lease, err := w.acquire(ctx, fmt.Sprintf("%s/%d", w.Resource, bay), leasehold.Wait(0))
	if errors.Is(err, leasehold.ErrBusy) {
		return refused()
	}
	if err != nil {
		return false, err
	}
	return true, w.holding(ctx, lease, func(held context.Context, t *ticket) error {
		return s.stay(held, w, bay, car, t)
	})
}

// look reads whether a bay is free, and then drives up to it.
func (s *Parking) look(ctx context.Context, w *worker, bay int) (free bool, err error) {
	car, err := w.books.number(ctx, nil, `SELECT car FROM bays WHERE bay = ?`, bay)
	if err != nil || car >= 0 {
		return false, err
	}
	if err := w.meet(ctx); err != nil {
		return false, err
	}
	return true, think(ctx)
}

// Bounds for how long a car stays.
const stayLeast, stayMost = 20 * time.Millisecond, 60 * time.Millisecond

func (s *Parking) stay(ctx context.Context, w *worker, bay, car int, t *ticket) error {
	if err := s.change(ctx, w, bay, car, 1, t); err != nil {
		return err
	}
	if err := pause(ctx, stayLeast+rand.N(stayMost-stayLeast)); err != nil {
		return err
	}
	return s.change(ctx, w, bay, -1, -1, t)
}

func (s *Parking) change(ctx context.Context, w *worker, bay, car, change int, t *ticket) error {
	return w.books.step(ctx, t, func(tx *tx) error {
		_, set := tx.write(`UPDATE bays SET car = ? WHERE bay = ?`, car, bay)
		_, noted := tx.write(`INSERT INTO events (bay, coming) VALUES (?, ?)`, bay, change)
		return errors.Join(set, noted)
	})
}
