package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A process is one of the processes that play a scenario.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser // closing it ends the process
	out    io.Reader
	stderr bytes.Buffer
	killed atomic.Bool // this program has killed it
}

// A saying is a message and the process that sent it.
type saying struct {
	by *process
	message
}

// perform starts n processes, and lets them begin at the same time when all are ready. Then it
// calls hear with one of their ready messages, and later with each further message, one at a time.
// It returns when all have ended. An error of hear or of a process ends the others.
func (r *run) perform(ctx context.Context, n int, hear func(p *process, m message) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	said, ended := make(chan saying), make(chan error)
	var failed error
	fail := func(err error) {
		if err != nil && failed == nil {
			failed = err
			cancel() // ends the processes; each of them is waited for
		}
	}
	for i := range n {
		p, err := r.start(ctx, i)
		if err != nil {
			fail(err)
			break
		}
		r.processes = append(r.processes, p)
		go func() { ended <- p.hear(said) }()
	}
	for readies, running := 0, len(r.processes); running > 0; {
		select {
		case s := <-said:
			if s.What == ready {
				if readies++; readies < n {
					continue
				}
				r.open()
			}
			if failed == nil {
				fail(hear(s.by, s.message))
			}
		case err := <-ended:
			running--
			if err == nil && readies < n {
				err = errors.New("a process ended before all were ready")
			}
			fail(err)
		}
	}
	return failed
}

// open lets the processes begin. It tells them the instant, because a busy machine may let some of
// them run much later.
func (r *run) open() {
	r.opened = time.Now()
	for _, p := range r.processes {
		p.tell(strconv.FormatInt(r.opened.UnixNano(), 10))
	}
}

// start starts process i and sends its order. On error no process is left.
func (r *run) start(ctx context.Context, i int) (*process, error) {
	o := r.order
	o.Process = i
	if r.store != nil && o.Store != "" {
		o.Store = r.store(i)
	}
	p := &process{cmd: r.stage.Worker(ctx)}
	p.cmd.Stderr = &p.stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	if p.out, err = p.cmd.StdoutPipe(); err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	// The order goes through the pipe, because an argument would show the store's password to every
	// user of the machine.
	if err := json.NewEncoder(p.in).Encode(o); err != nil {
		p.in.Close()
		return nil, p.wait(err)
	}
	return p, nil
}

// tell sends a line to the process. An error would mean that the process has ended, which hear
// notices.
func (p *process) tell(line string) { _, _ = io.WriteString(p.in, line+"\n") }

// kill ends the process at once, as a power cut would. That end is then no error.
func (p *process) kill() error {
	p.killed.Store(true)
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill a process: %w", err)
	}
	return nil
}

// hear passes on the process's messages until it ends. It returns how it ended.
func (p *process) hear(to chan<- saying) error {
	for lines := bufio.NewScanner(p.out); lines.Scan(); {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			p.in.Close() // this ends the process
			return p.wait(fmt.Errorf("a process said %q: %w", lines.Text(), err))
		}
		to <- saying{p, m}
	}
	return p.wait(nil)
}

// wait waits for the end of the process. err is an error that is known already.
func (p *process) wait(err error) error {
	waited := p.cmd.Wait()
	if waited == nil || p.killed.Load() {
		return err
	}
	text := strings.TrimSpace(p.stderr.String())
	if text == "" {
		return errors.Join(err, fmt.Errorf("a process ended: %w", waited))
	}
	return errors.Join(err, fmt.Errorf("a process ended: %w: %s", waited, text))
}
