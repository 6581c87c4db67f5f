package seckill

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A Runner holds sales with processes that it starts.
type Runner struct {
	Sale Sale
	// Dir is where the shops' files are put; it exists and is the caller's to remove.
	Dir string
	// Worker returns the command of a process that calls Work on its standard streams.
	Worker func(ctx context.Context) *exec.Cmd
	// Progress is called as buyers get their answers; nil: it is not.
	Progress func(served, sold int)
}

// Run holds one sale under the lock in store, or without a lock if store is "". All its
// processes have ended when it returns, also after an error or the end of ctx.
func (r *Runner) Run(ctx context.Context, store string) (Result, error) {
	path := filepath.Join(r.Dir, "shop-"+rand.Text()+".db")
	s, err := openShop(ctx, path)
	if err != nil {
		return Result{}, err
	}
	defer s.close()
	if err := s.fill(ctx, r.Sale.Stock); err != nil {
		return Result{}, err
	}
	var res Result
	// A resource of its own: the store may be a shared one.
	o := order{Shop: path, Store: store, Resource: "demo/seckill/" + rand.Text()}
	if err := r.serve(ctx, o, &res); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return Result{}, err
	}
	res.Sold, res.Left, err = s.count(ctx)
	res.Oversold = max(0, res.Sold-r.Sale.Stock)
	return res, err
}

// serve starts the processes, opens the doors for all of them at once and hears them out.
func (r *Runner) serve(ctx context.Context, o order, res *Result) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &crew{said: make(chan message), ended: make(chan error)}
	failed := r.hire(ctx, o, c)
	if failed != nil {
		cancel() // ends the processes; each of them is waited for
	}
	for running := len(c.workers); running > 0; {
		select {
		case m := <-c.said:
			r.take(m, c, res)
		case err := <-c.ended:
			running--
			if err != nil && failed == nil {
				failed = err
				cancel()
			}
		}
	}
	if failed == nil && len(c.waits) != r.Sale.Buyers {
		failed = fmt.Errorf("%d of %d buyers got an answer", len(c.waits), r.Sale.Buyers)
	}
	res.addWaits(c.waits, c.took)
	return failed
}

// A crew is the processes of one sale and what they have said.
type crew struct {
	workers []*worker
	said    chan message
	ended   chan error
	ready   int
	opened  time.Time
	took    time.Duration // from the opening to the last answer
	waits   []time.Duration
}

// hire starts all processes, each with its share of the buyers.
func (r *Runner) hire(ctx context.Context, o order, c *crew) error {
	for i := range r.Sale.Processes {
		o.Buyers = r.Sale.share(i)
		w, err := r.start(ctx, o)
		if err != nil {
			return err
		}
		o.First += o.Buyers
		c.workers = append(c.workers, w)
		go func() { c.ended <- w.hear(c.said) }()
	}
	return nil
}

// take notes what a process said. When the last one is ready it opens the doors.
func (r *Runner) take(m message, c *crew, res *Result) {
	if !m.Ready {
		c.waits = append(c.waits, m.Wait)
		c.took = time.Since(c.opened)
		if !m.Sold {
			res.TurnedAway++
		}
		if r.Progress != nil {
			r.Progress(len(c.waits), len(c.waits)-res.TurnedAway)
		}
		return
	}
	if c.ready++; c.ready < r.Sale.Processes {
		return
	}
	c.opened = time.Now()
	for _, w := range c.workers {
		io.WriteString(w.in, "open\n") // an error means that the process has ended, which tells itself
	}
}

// A worker is a process of buyers.
type worker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser // its end ends the process
	out    io.Reader
	stderr bytes.Buffer
}

// start starts a process and gives it its order. On error no process is left.
func (r *Runner) start(ctx context.Context, o order) (*worker, error) {
	w := &worker{cmd: r.Worker(ctx)}
	w.cmd.Stderr = &w.stderr
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start buyers: %w", err)
	}
	if w.out, err = w.cmd.StdoutPipe(); err != nil {
		return nil, fmt.Errorf("start buyers: %w", err)
	}
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start buyers: %w", err)
	}
	// The order goes through the pipe: an argument would show the store's password to
	// everybody on the machine.
	if err := json.NewEncoder(w.in).Encode(o); err != nil {
		w.in.Close()
		return nil, w.wait(err)
	}
	return w, nil
}

// hear passes on what the process says until it ends, and returns how it ended.
func (w *worker) hear(to chan<- message) error {
	var bad error
	for lines := bufio.NewScanner(w.out); lines.Scan(); {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			bad = fmt.Errorf("a process of buyers said %q: %w", lines.Text(), err)
			break
		}
		to <- m
	}
	if bad != nil {
		w.in.Close() // it ends the process
	}
	return w.wait(bad)
}

// wait waits for the end of the process; err is what is known already.
func (w *worker) wait(err error) error {
	waited := w.cmd.Wait()
	if waited == nil {
		return err
	}
	text := strings.TrimSpace(w.stderr.String())
	if text == "" {
		return errors.Join(err, fmt.Errorf("a process of buyers ended: %w", waited))
	}
	return errors.Join(err, fmt.Errorf("a process of buyers ended: %w: %s", waited, text))
}
