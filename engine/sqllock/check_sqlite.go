package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
)

// creates implements dialect: a user that may open the file may write it.
func (s *sqlite) creates(context.Context, *sql.DB) (may, known bool, err error) {
	return true, true, nil
}

// look implements dialect. The clock is this machine's own.
func (s *sqlite) look(ctx context.Context, db *sql.DB) ([]driver.Finding, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	path, err := mainFile(ctx, conn)
	if err != nil {
		return nil, err
	}
	var version, journal string
	var synchronous int
	err = conn.QueryRowContext(ctx, "SELECT sqlite_version(), (SELECT journal_mode FROM pragma_journal_mode), (SELECT synchronous FROM pragma_synchronous)").
		Scan(&version, &journal, &synchronous)
	if err != nil {
		return nil, err
	}
	file := driver.Finding{About: driver.AboutFile, Text: fmt.Sprintf("%s, on a file system of this machine", path)}
	if s.named != "" && s.named != path {
		file.Text = fmt.Sprintf("%s leads to %s, on a file system of this machine", s.named, path)
	}
	if err := s.locate(ctx, conn); err != nil {
		file.Level, file.Text, file.Advice = driver.Unfit, err.Error(), "keep the file in a folder of a local disk, under one name"
	}
	found := []driver.Finding{{About: driver.AboutVersion, Text: "SQLite " + version}, file}
	if tables, err := s.recognize(ctx, conn); err != nil || tables == 0 { // the first lock switches the file to WAL mode
		return found, err
	}
	durable := driver.Finding{About: driver.AboutPersistence, Text: fmt.Sprintf("journal_mode is %s, synchronous %d", journal, synchronous)}
	const full = 2
	if !strings.EqualFold(journal, "wal") || synchronous < full {
		durable.Level, durable.Advice = driver.Weak, "open it with journal_mode WAL and synchronous FULL"
		durable.Text += ": a power cut may forget the last leases"
	}
	return append(found, durable), nil
}
