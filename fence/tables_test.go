package fence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/fence"
)

// created is a database without tables. create is called when somebody creates one.
type created struct {
	driver.Conn
	create func()
}

func (c *created) Connect(context.Context) (driver.Conn, error) { return c, nil }
func (*created) Driver() driver.Driver                          { return nil }
func (*created) Close() error                                   { return nil }
func (c *created) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	c.create()
	return driver.ResultNoRows, nil
}
func (*created) QueryContext(ctx context.Context, _ string, _ []driver.NamedValue) (driver.Rows, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, errors.New("no such column")
}

// A table is another program's only if the database says that it has other columns.
func TestMigrateBlamesTheTableOnlyForWhatTheDatabaseSays(t *testing.T) {
	t.Parallel()
	guard, err := fence.NewSQL(fence.SQLite, "")
	if err != nil {
		t.Fatal(err)
	}
	for name, ends := range map[string]bool{"the context ends": true, "the columns differ": false} {
		ctx, cancel := context.WithCancel(t.Context())
		db := sql.OpenDB(&created{create: func() {
			if ends {
				cancel()
			}
		}})
		err := guard.Migrate(ctx, db)
		if blamed := strings.Contains(err.Error(), "another program's"); blamed == ends || errors.Is(err, context.Canceled) != ends {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		db.Close()
	}
}
