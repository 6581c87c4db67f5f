package pglisten

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold-go/leasehold/engine/sqllock"
)

const (
	// pingAfter is how long a connection may be silent before a ping tests it, and how long the
	// ping may take. Until a dead connection is found, waiters return to the database by
	// themselves.
	pingAfter = 3 * time.Second
	// connectWithin bounds an attempt to connect where the address has no bound.
	connectWithin = 10 * time.Second
)

// A Listener receives the notifications on a channel of one database. It uses one connection
// while Listen runs. It is safe for concurrent use.
type Listener struct {
	config *pgx.ConnConfig
	before func(context.Context, *pgx.ConnConfig) error // nil: nothing
}

var _ sqllock.Listener = (*Listener)(nil)

// New returns a Listener on the server at address, as pgx parses it: a URL, or words such as
// host=db.internal. It does not connect. An error has no password.
func New(address string) (*Listener, error) {
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, fmt.Errorf("pglisten: %w", err)
	}
	return NewFor(config), nil
}

// NewFor is New for a config that pgx.ParseConfig has returned.
func NewFor(config *pgx.ConnConfig) *Listener { return NewWith(config, nil) }

// NewWith is [NewFor] with a function that is called before each connection. It gets a copy of
// config that it may change, such as its password. If it fails, so does the attempt to connect.
// nil: no function is called. The config's OnNotification is not used.
func NewWith(config *pgx.ConnConfig, before func(context.Context, *pgx.ConnConfig) error) *Listener {
	config = config.Copy()
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectWithin
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // nothing here is worth preparing
	return &Listener{config: config, before: before}
}

// Listen implements [sqllock.Listener].
func (l *Listener) Listen(ctx context.Context, channel string, hear func(message string)) error {
	conn, err := l.connect(ctx)
	if err != nil {
		return fmt.Errorf("pglisten: %w", err)
	}
	defer func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer stop()
		_ = conn.Close(ctx) // it is closed in any case
	}()
	if err := begin(ctx, conn, channel); err != nil {
		return fmt.Errorf("pglisten: %w", err)
	}
	hear("")
	for {
		message, err := next(ctx, conn)
		if err != nil {
			return fmt.Errorf("pglisten: %w", err)
		}
		hear(message)
	}
}

func (l *Listener) connect(ctx context.Context) (*pgx.Conn, error) {
	config := l.config.Copy()
	if l.before != nil {
		if err := l.before(ctx, config); err != nil {
			return nil, err
		}
	}
	config.OnNotification = nil // with a handler, pgx keeps no messages for WaitForNotification
	return pgx.ConnectConfig(ctx, config)
}

func begin(ctx context.Context, conn *pgx.Conn, channel string) error {
	ctx, stop := context.WithTimeout(ctx, pingAfter)
	defer stop()
	_, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize())
	return err
}

// next waits for a message. It pings a silent connection now and then.
func next(ctx context.Context, conn *pgx.Conn) (string, error) {
	for {
		silence, stop := context.WithTimeout(ctx, pingAfter)
		note, err := conn.WaitForNotification(silence)
		silent := errors.Is(silence.Err(), context.DeadlineExceeded)
		stop()
		switch {
		case err == nil:
			return note.Payload, nil
		case ctx.Err() != nil:
			return "", ctx.Err()
		case !silent:
			return "", err
		}
		if err := ping(ctx, conn); err != nil {
			return "", err
		}
	}
}

func ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, stop := context.WithTimeout(ctx, pingAfter)
	defer stop()
	return conn.Ping(ctx)
}
