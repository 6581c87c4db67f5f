// Package together makes several processes do the same at the same moment, again and again, like
// the replicas of a first deployment.
package together

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// Processes is the number of processes.
const Processes = 4

// childEnv is set in a child process. Its value is a child as JSON.
const childEnv = "LEASEHOLD_TEST_TOGETHER"

// A child tells a process its test, its address and its number.
type child struct {
	Test    string
	Address string
	Number  int
}

// A Step is the work of one process in a round.
type Step func(round int) error

// Check is the whole of a test. It calls start, starts the processes, and makes all of them do each
// round at the same moment. An error of a step fails t. prepare is called in each process and
// returns its step. number counts the processes from 0, and address is the result of start.
func Check(t *testing.T, rounds int, start func() (address string), prepare func(t *testing.T, number int, address string) Step) {
	t.Helper()
	if text, is := os.LookupEnv(childEnv); is {
		var c child
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		if c.Test == t.Name() { // otherwise it is another test, which contains the wanted one
			obey(t, prepare(t, c.Number, c.Address))
		}
		return
	}
	address := start()
	var all []*process
	for i := range Processes {
		all = append(all, begin(t, child{t.Name(), address, i}))
	}
	for _, p := range all {
		if err := p.answer(); err != nil {
			t.Fatalf("process %d is not ready: %v", p.number, err)
		}
	}
	begun, failed := time.Now(), 0
	for round := range rounds {
		for _, p := range all {
			fmt.Fprintln(p.in, round) // a process that has ended will not answer
		}
		for _, p := range all {
			if err := p.answer(); err != nil {
				failed++
				if failed <= 10 {
					t.Errorf("round %d, process %d: %v", round, p.number, err)
				}
			}
		}
	}
	t.Logf("%d rounds of %d processes in %v; %d failed", rounds, Processes, time.Since(begun), failed)
}

// A process is a child, as its parent sees it.
type process struct {
	number int
	in     io.Writer
	out    *bufio.Scanner
}

// mark begins a line with the result of a round.
const mark = "together: "

func begin(t *testing.T, c child) *process {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	path := strings.Split(c.Test, "/")
	for i, name := range path {
		path[i] = "^" + regexp.QuoteMeta(name) + "$"
	}
	cmd := exec.Command(os.Args[0], "-test.run="+strings.Join(path, "/"))
	// The race detector would otherwise make each process wait for a second at its end.
	cmd.Env = append(os.Environ(), childEnv+"="+string(text), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = writer
	ended, err := servers.Start(cmd)
	writer.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // without input it ends
		in.Close()
		<-ended
		out.Close()
	})
	return &process{c.Number, in, bufio.NewScanner(out)}
}

// answer returns the result of a round.
func (p *process) answer() error {
	var said []string
	for p.out.Scan() {
		text, ok := strings.CutPrefix(p.out.Text(), mark)
		switch {
		case !ok:
			said = append(said, p.out.Text())
		case text == "":
			return nil
		default:
			return errors.New(text)
		}
	}
	return fmt.Errorf("it has ended: %s", strings.Join(said, "\n"))
}

// obey does a step for each line of the input.
func obey(t *testing.T, step Step) {
	t.Helper()
	say := func(err error) {
		text := ""
		if err != nil {
			text = strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(mark + text)
	}
	say(nil) // ready
	var round int
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if _, err := fmt.Sscan(lines.Text(), &round); err != nil {
			t.Fatal(err)
		}
		say(step(round))
	}
}
