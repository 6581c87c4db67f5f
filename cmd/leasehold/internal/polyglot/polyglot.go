// Package polyglot runs sellers that are written in Go, Python and shell. They sell the same stock
// through one "leasehold serve".
package polyglot

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/secret"
	"github.com/leasehold-go/leasehold/internal/pause"
)

// stock is the name of the lock.
const stock = "stock"

// Languages are the languages of the sellers, in the order of the report.
var Languages = []string{"go", "python", "shell"}

var (
	//go:embed seller.py
	inPython []byte
	//go:embed seller.sh
	inShell []byte
)

// ErrMissing means that a program which a seller needs is missing.
var ErrMissing = errors.New("demo polyglot needs")

// Missing returns an error that names a missing program, or nil.
func Missing() error {
	for _, need := range []struct{ program, what, debian string }{
		{"python3", "Python 3, for the seller in Python", "python3"},
		{"sh", "a shell, for the seller in shell", "dash"},
		{"curl", "curl, for the seller in shell", "curl"},
	} {
		if _, err := exec.LookPath(need.program); err != nil {
			return fmt.Errorf("%w %s, and %s is not in PATH: install it (Debian: apt install %s)", ErrMissing, need.what, need.program, need.debian)
		}
	}
	return nil
}

// A Sale is one run.
type Sale struct {
	URL   string // of the service; "": without a lock
	Stock int
	// Go is the command of the seller in Go, without the URL and a folder. It calls Sell with these.
	Go []string
	// Process is how each seller is started.
	Process *syscall.SysProcAttr
	// Close takes the lock of the stock. The function that it returns releases the lock once the
	// given number of sellers wait for it. So each seller sells something, even one that starts
	// late. nil: the lock is free from the start.
	Close func(ctx context.Context) (open func(waiting int) error, err error)
}

// A Result is the outcome of a sale.
type Result struct {
	Stock    int            `json:"stock"`
	Sold     map[string]int `json:"sold"` // by language
	Left     int            `json:"left"`
	Oversold int            `json:"oversold"`
	Broken   []string       `json:"broken"` // rules that must hold under a lock and do not
	Millis   int64          `json:"total_ms"`
}

// Run lets the sellers sell everything. It uses a folder of its own, and removes it.
func (s *Sale) Run(ctx context.Context) (r *Result, err error) {
	folder, err := os.MkdirTemp("", "leasehold-demo-")
	if err != nil {
		return nil, fmt.Errorf("create a folder for the demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	for name, text := range map[string][]byte{
		"seller.py": inPython, "seller.sh": inShell, "stock": []byte(strconv.Itoa(s.Stock) + "\n"), "sold": nil,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			return nil, fmt.Errorf("write a file of the demo: %w", err)
		}
	}
	began, err := s.sell(ctx, folder)
	if err != nil {
		return nil, err
	}
	r, err = s.count(folder)
	if err == nil {
		r.Millis = time.Since(began).Milliseconds()
	}
	return r, err
}

// sell runs the sellers, which begin at the same time.
func (s *Sale) sell(ctx context.Context, folder string) (began time.Time, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opens := func(int) error { return nil }
	if s.Close != nil {
		if opens, err = s.Close(ctx); err != nil {
			return time.Time{}, err
		}
	}
	commands := [][]string{s.Go, {"python3", filepath.Join(folder, "seller.py")}, {"sh", filepath.Join(folder, "seller.sh")}}
	var sellers sync.WaitGroup
	for i, words := range commands {
		cmd := exec.CommandContext(ctx, words[0], append(words[1:], s.URL, folder)...)
		cmd.Env, cmd.SysProcAttr = secret.Environ(), s.Process
		sellers.Go(func() {
			if err := run(cmd, Languages[i]); err != nil {
				cancel(err) // ends the other sellers, whose errors follow from that
			}
		})
	}
	if err := letIn(ctx, folder); err != nil {
		cancel(err)
	}
	if err := opens(len(commands)); err != nil {
		cancel(err)
	}
	began = time.Now()
	sellers.Wait()
	return began, context.Cause(ctx)
}

// run runs a seller until it has ended.
func run(cmd *exec.Cmd, language string) error {
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &said, &said, time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the seller in %s: %w: %s", language, err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// patience limits how long a seller may take to start, and then to wait for the lock.
const patience = time.Minute

// letIn lets the sellers begin when all are ready.
func letIn(ctx context.Context, folder string) error {
	for end := time.Now().Add(patience); ; {
		ready, err := filepath.Glob(filepath.Join(folder, "ready.*"))
		if err == nil && len(ready) == len(Languages) {
			return os.WriteFile(filepath.Join(folder, "open"), nil, 0o600)
		}
		if time.Now().After(end) {
			return fmt.Errorf("of the sellers only %q came within %v", ready, patience)
		}
		if pause.For(ctx, 10*time.Millisecond) != nil {
			return context.Cause(ctx)
		}
	}
}

// Closed implements Sale.Close by the lock of the stock.
func Closed(ctx context.Context, locks *leasehold.Locker) (open func(waiting int) error, err error) {
	lease, err := locks.Acquire(ctx, stock, leasehold.Wait(patience), leasehold.Note("not open yet"))
	if err != nil {
		return nil, err
	}
	return func(waiting int) error {
		for end := time.Now().Add(patience); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			if state, err := locks.Inspect(ctx, stock); err != nil || len(state.Waiters) >= waiting {
				break
			}
		}
		return lease.Release(context.WithoutCancel(ctx)) // Release limits its own time
	}, nil
}

// count reads the sellers' books.
func (s *Sale) count(folder string) (*Result, error) {
	text, err := os.ReadFile(filepath.Join(folder, "stock"))
	if err != nil {
		return nil, err
	}
	r := &Result{Stock: s.Stock, Sold: make(map[string]int), Broken: []string{}}
	if r.Left, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		return nil, fmt.Errorf("the stock is no number: %w", err)
	}
	sold, ordered, err := r.read(filepath.Join(folder, "sold"))
	if err != nil {
		return nil, err
	}
	if r.Oversold = max(0, sold+r.Left-s.Stock); r.Oversold > 0 {
		r.Broken = append(r.Broken, fmt.Sprintf("sold %d pieces of %d", sold, s.Stock))
	}
	if s.URL != "" && !ordered {
		r.Broken = append(r.Broken, "tokens did not grow")
	}
	return r, nil
}

// read counts the sales in one seller's books, and reports whether the tokens grow.
func (r *Result) read(books string) (sold int, ordered bool, err error) {
	text, err := os.ReadFile(books)
	if err != nil {
		return 0, false, err
	}
	var last uint64
	ordered = true
	for line := range strings.Lines(string(text)) {
		language, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		token, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return 0, false, fmt.Errorf("the books have %q", line)
		}
		ordered = ordered && token > last
		last = token
		r.Sold[language]++
		sold++
	}
	return sold, ordered, nil
}
