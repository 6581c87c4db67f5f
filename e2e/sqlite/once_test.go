package sqlite

import (
	"bufio"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/e2e/once"
	"github.com/leasehold-go/leasehold/fence"
)

// onceDSN lets a write wait for the one that has the file.
func onceDSN(path string) string {
	return path + "?_pragma=busy_timeout(5000)&_txlock=immediate"
}

func TestOnceOnSQLite(t *testing.T) {
	t.Parallel()
	once.Check(t, openDB(t, onceDSN(lockFile(t))), fence.SQLite)
}

// onceChild names the file of the process that is killed in the middle.
const onceChild = "LEASEHOLD_TEST_ONCE"

// holder stands in for a *leasehold.Lease.
type holder uint64

func (holder) Name() string    { return "report" }
func (h holder) Owner() string { return fmt.Sprint(uint64(h)) }
func (h holder) Token() uint64 { return uint64(h) }

func newOnce(t *testing.T, db *sql.DB) *fence.Once {
	t.Helper()
	guard, err := fence.NewSQL(fence.SQLite, "")
	if err != nil {
		t.Fatal(err)
	}
	o, err := fence.NewOnce(guard, "")
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// A holder is killed at each step of its work, in a process of its own; the next one does
// the work once if it was not done, and not again if it was.
func TestOnceSurvivesAKillAtEachStep(t *testing.T) {
	if path := os.Getenv(onceChild); path != "" {
		dieInTheMiddle(t, path)
		return
	}
	t.Parallel()
	for step, want := range map[string]error{"written": nil, "committed": fence.ErrDone} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			path := lockFile(t)
			db := openDB(t, onceDSN(path))
			o := newOnce(t, db)
			if err := o.Migrate(bounded(t), db); err != nil {
				t.Fatal(err)
			}
			mustExec(t, db, "CREATE TABLE effects (what INTEGER)")
			child := exec.Command(os.Args[0], "-test.run=^TestOnceSurvivesAKillAtEachStep$")
			child.Env = append(os.Environ(), onceChild+"="+path, "LEASEHOLD_TEST_STEP="+step)
			out, err := child.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if line != step+"\n" {
				t.Errorf("the child said %q, %v", line, err)
			}
			child.Process.Kill()
			child.Wait()
			err = o.Do(bounded(t), db, "2026-11-20", holder(11), insertEffect)
			if !errors.Is(err, want) {
				t.Errorf("killed when %s: the next holder got %v, want %v", step, err, want)
			}
			var n int
			if err := db.QueryRow("SELECT count(*) FROM effects").Scan(&n); err != nil || n != 1 {
				t.Errorf("killed when %s: %d effects, %v", step, n, err)
			}
		})
	}
}

func insertEffect(tx *sql.Tx) error {
	_, err := tx.Exec("INSERT INTO effects VALUES (1)")
	return err
}

// dieInTheMiddle works until it is killed.
func dieInTheMiddle(t *testing.T, path string) {
	db := openDB(t, onceDSN(path))
	step := os.Getenv("LEASEHOLD_TEST_STEP")
	err := newOnce(t, db).Do(bounded(t), db, "2026-11-20", holder(10), func(tx *sql.Tx) error {
		err := insertEffect(tx)
		if step == "written" && err == nil {
			fmt.Println(step)
			time.Sleep(time.Minute)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(step)
	time.Sleep(time.Minute)
}
