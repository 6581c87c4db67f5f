package bench

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/sqllock"
)

// BenchmarkSQLite is an uncontended acquire and release. The driver and the Locker must
// stay within 3 times of bare, which is what one would write by hand.
func BenchmarkSQLite(b *testing.B) {
	b.Run("bare", bare)
	b.Run("driver", sqliteDriver)
	b.Run("locker", sqliteLocker)
}

// bare takes and frees a row in two statements, prepared, with the same durability.
func bare(b *testing.B) {
	d, db := openSQLite(b, filepath.Join(b.TempDir(), "locks.db"))
	defer d.Close()
	if _, err := db.Exec(`CREATE TABLE bare (name TEXT PRIMARY KEY, owner TEXT NOT NULL, expires INTEGER NOT NULL) WITHOUT ROWID`); err != nil {
		b.Fatal(err)
	}
	take := prepare(b, db, `INSERT INTO bare VALUES (?1, ?2, unixepoch() + 10) ON CONFLICT (name)
		DO UPDATE SET owner = excluded.owner, expires = excluded.expires WHERE expires <= unixepoch()`)
	free := prepare(b, db, `UPDATE bare SET expires = 0 WHERE name = ?1 AND owner = ?2`)
	for b.Loop() {
		for _, stmt := range []*sql.Stmt{take, free} {
			res, err := stmt.Exec("orders/42", "me")
			if err != nil {
				b.Fatal(err)
			}
			if n, err := res.RowsAffected(); n != 1 || err != nil {
				b.Fatal(n, err)
			}
		}
	}
}

func prepare(b *testing.B, db *sql.DB, text string) *sql.Stmt {
	stmt, err := db.Prepare(text)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { stmt.Close() })
	return stmt
}

func sqliteDriver(b *testing.B) {
	d, _ := openSQLite(b, filepath.Join(b.TempDir(), "locks.db"))
	defer d.Close()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	for i := 0; b.Loop(); i++ {
		claim, err := d.Claim(driver.Request{Resource: "orders/42", Owner: strconv.Itoa(i), TTL: 10 * time.Second, Queue: true})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := claim.Try(ctx); err != nil {
			b.Fatal(err)
		}
		if err := claim.Release(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func sqliteLocker(b *testing.B) {
	d, _ := openSQLite(b, filepath.Join(b.TempDir(), "locks.db"))
	defer d.Close()
	locks, err := leasehold.New(d, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer locks.Close()
	for b.Loop() {
		lease, err := locks.Acquire(b.Context(), "orders/42")
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// openSQLite opens the locks in the file at path as another process would.
func openSQLite(tb testing.TB, path string) (*sqllock.Driver, *sql.DB) {
	tb.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { db.Close() })
	db.SetMaxIdleConns(4)
	d, err := sqllock.NewSQLite(db, nil)
	if err != nil {
		tb.Fatal(err)
	}
	if err := d.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return d, db
}

// contendedProcesses is how many processes BenchmarkSQLiteContended starts.
const contendedProcesses = 8

// BenchmarkSQLiteContended has real processes want one name all the time; each section
// adds 1 to a number in a file, without any other protection. It reports sections per
// second and the waits. The fair share is 8 times the mean turn: the 99th percentile
// must be within 3 times of it. One iteration is one section.
func BenchmarkSQLiteContended(b *testing.B) {
	dir := b.TempDir()
	number := filepath.Join(dir, "number")
	if err := os.WriteFile(number, numberText(0), 0o600); err != nil {
		b.Fatal(err)
	}
	d, _ := openSQLite(b, filepath.Join(dir, "locks.db"))
	defer d.Close()
	each := max(1, b.N/contendedProcesses)
	b.ResetTimer()
	waits := contend(b, dir, each)
	elapsed := b.Elapsed()

	total := each * contendedProcesses
	if got, _ := os.ReadFile(number); string(got) != string(numberText(total)) {
		b.Fatalf("%s sections counted, %d held: updates were lost", got, total)
	}
	slices.Sort(waits)
	turn := elapsed / time.Duration(total)
	p99 := waits[len(waits)*99/100]
	b.ReportMetric(float64(total)/elapsed.Seconds(), "sections/s")
	b.ReportMetric(float64(waits[len(waits)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(p99.Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(p99)/float64(contendedProcesses*turn), "p99/fair")
}

// contend starts the processes and returns how long each acquire of them waited.
func contend(b *testing.B, dir string, each int) []time.Duration {
	b.Helper()
	var cmds []*exec.Cmd
	for i := range contendedProcesses {
		cmd := exec.Command(os.Args[0], "-test.run=^TestContender$")
		cmd.Env = append(os.Environ(), "LEASEHOLD_BENCH_DIR="+dir, fmt.Sprint("LEASEHOLD_BENCH_ID=", i), fmt.Sprint("LEASEHOLD_BENCH_EACH=", each))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	var all []time.Duration
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}
		var waits []time.Duration
		text, err := os.ReadFile(waitsFile(dir, strconv.Itoa(i)))
		if err == nil {
			err = json.Unmarshal(text, &waits)
		}
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, waits...)
	}
	return all
}

func waitsFile(dir, id string) string { return filepath.Join(dir, "waits-"+id) }

// TestContender is one process of BenchmarkSQLiteContended.
func TestContender(t *testing.T) {
	dir := os.Getenv("LEASEHOLD_BENCH_DIR")
	if dir == "" {
		t.Skip("runs as a child of BenchmarkSQLiteContended")
	}
	each, _ := strconv.Atoi(os.Getenv("LEASEHOLD_BENCH_EACH"))
	d, _ := openSQLite(t, filepath.Join(dir, "locks.db"))
	defer d.Close()
	locks, err := leasehold.New(d, &leasehold.Options{HandOver: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	waits := make([]time.Duration, 0, each)
	for range each {
		start := time.Now()
		lease, err := locks.Acquire(t.Context(), "number")
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, time.Since(start))
		if err := increment(filepath.Join(dir, "number")); err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	text, _ := json.Marshal(waits) // numbers always encode
	if err := os.WriteFile(waitsFile(dir, os.Getenv("LEASEHOLD_BENCH_ID")), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// increment reads the number and writes it back, as two steps.
func increment(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	digits := make([]byte, numberWidth)
	if _, err := file.ReadAt(digits, 0); err != nil {
		return err
	}
	n, err := strconv.Atoi(string(digits))
	if err != nil {
		return err
	}
	// In place: ext4 would flush a file that was truncated and written again.
	_, err = file.WriteAt(numberText(n+1), 0)
	return err
}

const numberWidth = 12

func numberText(n int) []byte { return fmt.Appendf(nil, "%0*d", numberWidth, n) }
