package sqlite

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/servers"
)

const (
	stormDir       = "LEASEHOLD_STORM_DIR"
	stormProcesses = 8
	stormSections  = 40 // of each process
)

// TestSQLiteStormOfProcesses has 8 real processes take one name in turn, each section
// adding 1 to a number without any other protection, while one more writes to the same
// file all the time. No call may fail, SQLITE_BUSY least of all, and no update be lost.
func TestSQLiteStormOfProcesses(t *testing.T) {
	if dir := os.Getenv(stormDir); dir != "" {
		stormChild(t, dir)
		return
	}
	dir := servers.DataDir(t)
	number := filepath.Join(dir, "number")
	write(t, number, []byte("0"))
	path := filepath.Join(dir, "locks.db")
	var children sync.WaitGroup
	for range stormProcesses {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
		cmd.Env = append(os.Environ(), stormDir+"="+dir)
		children.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("a process: %v\n%s", err, out)
			}
		})
	}
	done := make(chan struct{})
	var noise sync.WaitGroup
	noise.Go(func() {
		for d := openSQLite(t, path); ; time.Sleep(5 * time.Millisecond) {
			select {
			case <-done:
				return
			default:
				if err := d.RaiseFence(bounded(t), "noise", 1); err != nil {
					t.Error(err)
				}
			}
		}
	})
	children.Wait()
	close(done)
	noise.Wait()
	got, err := os.ReadFile(number)
	if want := strconv.Itoa(stormProcesses * stormSections); err != nil || string(got) != want {
		t.Errorf("counted %q, %v; want %s", got, err, want)
	}
}

func stormChild(t *testing.T, dir string) {
	locks, err := leasehold.New(openSQLite(t, filepath.Join(dir, "locks.db")), &leasehold.Options{HandOver: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	number := filepath.Join(dir, "number")
	for range stormSections {
		err := locks.Do(context.Background(), "number", func(context.Context) error {
			text, err := os.ReadFile(number)
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(string(text))
			if err != nil {
				return err
			}
			return os.WriteFile(number, fmt.Append(nil, n+1), 0o600)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
