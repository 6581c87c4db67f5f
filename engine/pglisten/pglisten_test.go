package pglisten_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/leasehold-go/leasehold/engine/pglisten"
)

const canary = "s3cr3t-canary"

func TestErrorsKeepSecrets(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"postgres://u:" + canary + "@%zz/db", "postgres://u:" + canary + "@h/db?sslmode=nosuch", "host=h port=x password=" + canary,
	} {
		if _, err := pglisten.New(address); err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("New: %v; want an error without the password", err)
		}
	}
	l, err := pglisten.New("postgres://u:" + canary + "@127.0.0.1:1/db?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	err = l.Listen(t.Context(), "wake", func(string) { t.Error("heard something") })
	if err == nil || strings.Contains(err.Error(), canary) {
		t.Errorf("Listen where nobody is: %v; want an error without the password", err)
	}
}

func TestListenEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l, err := pglisten.New("postgres://u@192.0.2.1/db") // no such host, by RFC 5737
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := l.Listen(ctx, "wake", func(string) {}); err == nil {
		t.Error("no error")
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v to end", took)
	}
}

// Each attempt calls the function that prepares it. Changes of the config apply to that attempt
// alone.
func TestEachConnectionAsks(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig("postgres://u@127.0.0.1:1/db?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	no, asked := errors.New("no password today"), 0
	l := pglisten.NewWith(config, func(_ context.Context, c *pgx.ConnConfig) error {
		if c.Password != "" || c.RuntimeParams["changed"] != "" {
			t.Error("changed for another attempt")
		}
		c.Password, c.RuntimeParams["changed"] = canary, "yes"
		if asked++; asked == 2 {
			return no
		}
		return nil
	})
	for _, want := range []error{nil, no, nil} {
		err := l.Listen(t.Context(), "wake", func(string) { t.Error("heard something") })
		if err == nil || want != nil && !errors.Is(err, want) || strings.Contains(err.Error(), canary) {
			t.Errorf("%v; want %v", err, want)
		}
	}
	if asked != 3 {
		t.Errorf("asked %d times", asked)
	}
}

// served returns the address of a server that accepts one connection and leaves the rest to serve.
func served(t *testing.T, serve func(conn net.Conn, backend *pgproto3.Backend)) string {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		conn, err := server.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		backend := pgproto3.NewBackend(conn, conn)
		if _, err := backend.ReceiveStartupMessage(); err != nil {
			return
		}
		backend.Send(&pgproto3.AuthenticationOk{})
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if backend.Flush() == nil {
			serve(conn, backend)
		}
	}()
	return "postgres://u@" + server.Addr().String() + "/db?sslmode=disable"
}

// If a server, or what is in its place, no longer answers, the attempt ends.
func TestListenIsBounded(t *testing.T) {
	t.Parallel()
	l, err := pglisten.New(served(t, func(conn net.Conn, _ *pgproto3.Backend) {
		_, _ = io.Copy(io.Discard, conn) // LISTEN, which gets no answer
	}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := l.Listen(ctx, "wake", func(string) { t.Error("heard something") }); err == nil || ctx.Err() != nil {
		t.Errorf("Listen: %v, %v; want an error long before", err, ctx.Err())
	}
}

// A config may have a handler for notifications. Listen receives its messages all the same, and does not call the handler.
func TestListenTakesNoHandler(t *testing.T) {
	t.Parallel()
	handler := func(*pgconn.PgConn, *pgconn.Notification) { t.Error("the handler was called") }
	for what, before := range map[string]func(context.Context, *pgx.ConnConfig) error{
		"of the config":   nil,
		"of the function": func(_ context.Context, c *pgx.ConnConfig) error { c.OnNotification = handler; return nil },
	} {
		config, err := pgx.ParseConfig(served(t, func(_ net.Conn, backend *pgproto3.Backend) {
			if _, err := backend.Receive(); err != nil { // LISTEN
				return
			}
			backend.Send(&pgproto3.CommandComplete{CommandTag: []byte("LISTEN")})
			backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			backend.Send(&pgproto3.NotificationResponse{Channel: "wake", Payload: "message"})
			_ = backend.Flush() // if it fails, the message is not heard
		}))
		if err != nil {
			t.Fatal(err)
		}
		if before == nil {
			config.OnNotification = handler
		}
		var heard []string
		err = pglisten.NewWith(config, before).Listen(t.Context(), "wake", func(message string) { heard = append(heard, message) })
		if want := []string{"", "message"}; err == nil || !slices.Equal(heard, want) {
			t.Errorf("handler %s: heard %q, %v; want %q, and an error as the connection ends", what, heard, err, want)
		}
	}
}
