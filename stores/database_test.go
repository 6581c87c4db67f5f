package stores

import (
	"context"
	"crypto/tls"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/storeurl"
	"github.com/leasehold-go/leasehold/internal/storeurl/urltest"
)

func TestWrongDatabaseURLs(t *testing.T) {
	t.Parallel()
	urltest.Wrong(t, Open, map[string]string{
		"postgres:" + canary:                             "two slashes",
		"postgres://":                                    "host is missing",
		"postgres://h":                                   "one database",
		"postgres://u:" + canary + "@h1,h2/db":           "one host",
		"postgres://h/a/b":                               "one database",
		"postgres://u:" + canary + "@h/db?pooled=yes":    "true or false",
		"postgres://u:" + canary + "@h/db?listen=h":      "host:port",
		"postgres://u:" + canary + "@h/db?listen=h:x":    "host:port",
		"postgres://u:" + canary + "@h/db?sslmode=x":     "sslmode is one of disable",
		"postgres://u:" + canary + "@h/db?sslmode=":      "sslmode is one of disable",
		"postgres://h/db?sslmode=require&tls=true":       "excludes",
		"postgres://u:" + canary + "@h/db?password=x":    "unknown",
		"postgres://u:" + canary + "@h/db?prefix=a-b":    "Prefix",
		"postgres://u:" + canary + "@h/db?schema=a.b":    "Schema",
		"postgres://u:%zz" + canary + "@h/db":            "no escape",
		"mysql:u:" + canary + "@tcp(h)/db":               "two slashes",
		"mysql://u:" + canary + "@h":                     "one database",
		"mysql://u:" + canary + "@h1,h2/db":              "one host",
		"mysql://u:" + canary + "@h/db?parseTime=true":   "unknown",
		"mysql://u:" + canary + "@h/db?prefix=" + "a%22": "Prefix",
		"mysql://u:" + canary + "@h/db?tls=maybe":        "true or false",
	})
}

// A server that is not there is no mistake of the URL, and the error says nothing secret.
func TestDatabasesOutOfReach(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://u:" + canary + "@127.0.0.1:1/db", "postgres://u:" + canary + "'\\x@127.0.0.1:1/db?pooled=true&listen=127.0.0.1:2",
		"mysql://u:" + canary + "@127.0.0.1:1/db", "mysql://u:" + canary + "@127.0.0.1:1/db?schema=other",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		d, err := Open(ctx, url)
		cancel()
		if d != nil || err == nil || errors.Is(err, ErrURL) || strings.Contains(err.Error(), canary) {
			t.Errorf("Open(%q) = %v, %v", url, d, err)
		}
	}
}

func FuzzPostgresURLErrorsKeepSecrets(f *testing.F) {
	f.Add("//u:", "@h/db?pooled=x")
	f.Fuzz(func(t *testing.T, before, after string) {
		u, err := storeurl.Parse("postgres:"+before+canary+after, postgresForm)
		if err == nil {
			_, err = postgresConfig(u)
		}
		if err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("%q and %q: %v", before, after, err)
		}
	})
}

// The certificate of the server that listen names must be for that host, before each connection, unless server_name says
// another.
func TestPostgresListensByTheOtherName(t *testing.T) {
	for query, want := range map[string]string{
		"sslmode=verify-full": "direct", "sslmode=prefer": "direct", "tls=true": "direct", "server_name=pooler": "pooler", "server_name=x": "x",
	} {
		address, err := newPostgresAddress("postgres://u@pooler/db?" + query)
		if err != nil {
			t.Fatal(err)
		}
		config := address.config()
		address.at(config, "direct", 5432)
		for range 2 {
			ways := []*tls.Config{config.TLSConfig}
			for _, f := range config.Fallbacks {
				ways = append(ways, f.TLSConfig)
			}
			for _, w := range ways {
				if w != nil && w.ServerName != want {
					t.Errorf("%s: the certificate is to be for %s; want %s", query, w.ServerName, want)
				}
			}
			if err := address.refresh(t.Context(), config); err != nil || config.Host != "direct" {
				t.Error(config.Host, err)
			}
		}
		if own := address.config(); own.Host != "pooler" || own.TLSConfig.ServerName == "direct" {
			t.Errorf("%s: the pool connects to %s by the name %s", query, own.Host, own.TLSConfig.ServerName)
		}
	}
}

// A DATABASE_URL says how much TLS it wants in libpq's words.
func TestPostgresSSLModes(t *testing.T) {
	for mode, want := range map[string]struct{ plain, tls, verified, named bool }{
		"disable":     {plain: true},
		"allow":       {plain: true, tls: true},
		"prefer":      {plain: true, tls: true},
		"require":     {tls: true},
		"verify-ca":   {tls: true, verified: true},
		"verify-full": {tls: true, verified: true, named: true},
	} {
		u, err := storeurl.Parse("postgres://u@h/db?sslmode="+mode, postgresForm)
		if err != nil {
			t.Fatal(err)
		}
		config, err := postgresConfig(u)
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		ways := []*tls.Config{config.TLSConfig}
		for _, f := range config.Fallbacks {
			ways = append(ways, f.TLSConfig)
		}
		got := want
		got.plain, got.tls = false, false
		for _, w := range ways {
			got.plain, got.tls = got.plain || w == nil, got.tls || w != nil
			if w != nil && got.tls {
				got.named = !w.InsecureSkipVerify
				got.verified = got.named || w.VerifyPeerCertificate != nil || w.VerifyConnection != nil
			}
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", mode, got, want)
		}
	}
}

// lastMoment is a database that answers its first ping by calling answer, and then refuses all.
type lastMoment struct {
	sqldriver.Conn
	answer func(ctx context.Context)
}

var errRefused = errors.New("refused")

func (l *lastMoment) Connect(context.Context) (sqldriver.Conn, error) { return l, nil }
func (*lastMoment) Driver() sqldriver.Driver                          { return nil }
func (l *lastMoment) Ping(ctx context.Context) error                  { l.answer(ctx); return nil }
func (*lastMoment) BeginTx(context.Context, sqldriver.TxOptions) (sqldriver.Tx, error) {
	return nil, errRefused
}
func (*lastMoment) ExecContext(context.Context, string, []sqldriver.NamedValue) (sqldriver.Result, error) {
	return nil, errRefused
}
func (*lastMoment) QueryContext(context.Context, string, []sqldriver.NamedValue) (sqldriver.Rows, error) {
	return nil, errRefused
}
func (*lastMoment) Close() error { return nil }

// A database that answers as the time for the first answer ends has no tables yet.
func TestAnAnswerAtTheLastMoment(t *testing.T) {
	for name, ends := range map[string]func(first context.Context, stop func()){
		"the time for it ends": func(first context.Context, _ func()) { <-first.Done() },
		"the caller gives up":  func(_ context.Context, stop func()) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				db := sql.OpenDB(&lastMoment{answer: func(first context.Context) { ends(first, stop) }})
				defer db.Close()
				d, err := sqllock.NewPostgres(db, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				err = databaseStore{d, db}.prepare(ctx, true)
				if !errors.Is(err, errRefused) && !errors.Is(err, context.Canceled) {
					t.Errorf("%v, want the error of creating tables", err)
				}
			})
		})
	}
}
