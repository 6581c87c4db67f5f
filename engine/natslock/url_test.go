package natslock

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/leasehold-go/leasehold/internal/storeurl"
	"github.com/leasehold-go/leasehold/internal/storeurl/urltest"
)

const canary = urltest.Canary

func TestWrongURLs(t *testing.T) {
	t.Parallel()
	urltest.Wrong(t, OpenURL, map[string]string{
		"nats:" + canary:                             "two slashes",
		"nats:///locks":                              "host is missing",
		"nats://h":                                   "one bucket",
		"nats://h/a/b":                               "one bucket",
		"nats://" + canary + "@h/locks":              "without a password",
		"nats://h/locks?replicas=0":                  "1 to 5",
		"nats://h/locks?replicas=" + canary:          "1 to 5",
		"nats://h/locks?server_clock=" + canary:      "true or false",
		"nats://h/locks?password=" + canary:          "unknown",
		"nats://u:" + canary + "@h/locks?tls=x":      "true or false",
		"nats://:" + canary + "@h/l?password_file=/": "exclude each other",
		"redis://u:" + canary + "@h":                 "none of nats",
	})
}

// Out of reach is no mistake of the URL.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	for _, open := range []string{"nats://u:" + canary + "@127.0.0.1:1/locks", "nats://:" + canary + "@127.0.0.1:1,127.0.0.1:2/locks"} {
		if d, err := OpenURL(t.Context(), open); d != nil || !errors.Is(err, ErrUnreachable) || strings.Contains(err.Error(), canary) {
			t.Errorf("%v, %v; want ErrUnreachable", d, err)
		}
	}
}

// What a URL says of the user is what the server is told.
func TestCredentials(t *testing.T) {
	t.Setenv(storeurl.PasswordVariable, "")
	file := filepath.Join(t.TempDir(), "pw")
	if err := os.WriteFile(file, []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]nats.Options{
		"nats://u:" + canary + "@h/l":          {User: "u", Password: canary},
		"nats://u@h/l?password_file=" + file:   {User: "u", Password: canary},
		"nats://:" + canary + "@h/l":           {Token: canary},
		"nats://h/l?password_file=" + file:     {Token: canary},
		"nats://h/l":                           {},
		"nats://h1,h2/l?tls=true":              {Secure: true},
		"nats://h1,h2/l?server_name=one.test":  {Secure: true},
		"nats://h/l?tls=true&server_clock=yes": {Secure: true},
	} {
		u, err := storeurl.Parse(url, urlForm)
		if err != nil {
			t.Fatal(err)
		}
		got := optionsOf(t, u)
		if got.UserInfo != nil {
			got.User, got.Password = got.UserInfo()
		}
		if got.TokenHandler != nil {
			got.Token = got.TokenHandler()
		}
		if got.User != want.User || got.Password != want.Password || got.Token != want.Token || got.Secure != want.Secure {
			t.Errorf("%s: %q, %q, %q, TLS %v", url, got.User, got.Password, got.Token, got.Secure)
		}
		if got.UserJWT != nil {
			t.Errorf("%s: has credentials of a file", url)
		}
		if got.Secure && got.TLSConfig.ServerName != u.Options.Get("server_name") {
			t.Errorf("%s: all servers are asked for the name %q", url, got.TLSConfig.ServerName)
		}
	}
}

// optionsOf is what the client is given.
func optionsOf(t *testing.T, u *storeurl.URL) (got nats.Options) {
	t.Helper()
	opts, err := connection(u)
	if err != nil {
		t.Fatal(err)
	}
	for _, opt := range opts {
		if err := opt(&got); err != nil {
			t.Fatal(err)
		}
	}
	return got
}

// writeCredentials writes what nsc does.
func writeCredentials(t *testing.T, path, jwt string) nkeys.KeyPair {
	t.Helper()
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := key.Seed()
	if err != nil {
		t.Fatal(err)
	}
	text := "-----BEGIN NATS USER JWT-----\n" + jwt + "\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n" + string(seed) + "\n------END USER NKEY SEED------\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return key
}

// Credentials are those that the file has by the time of a connection, or had before it was spoilt.
func TestCredentialsOfAFile(t *testing.T) {
	t.Chdir(t.TempDir())
	writeCredentials(t, "x.creds", canary)
	u, err := storeurl.Parse("nats://h/l?creds_file=x.creds", urlForm)
	if err != nil {
		t.Fatal(err)
	}
	path := u.Options.Get("creds_file")
	t.Chdir(t.TempDir()) // paths mean the same everywhere
	got := optionsOf(t, u)
	check := func(want string, key nkeys.KeyPair) {
		t.Helper()
		if jwt, err := got.UserJWT(); jwt != want || err != nil {
			t.Errorf("%q, %v", jwt, err)
		}
		if signed, err := got.SignatureCB([]byte("nonce")); err != nil || key.Verify([]byte("nonce"), signed) != nil {
			t.Errorf("%s: not signed by its key: %v", want, err)
		}
	}
	key := writeCredentials(t, path, "another")
	check("another", key)
	if err := os.WriteFile(path, []byte("-----BEGIN NATS USER JWT-----\nhalf"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("another", key)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	check("another", key)
}
