package storeurl

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

func TestParts(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv(PasswordVariable, "")
	if err := os.WriteFile("pw", []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for rest, want := range map[string]URL{
		"//h":                            {Hosts: []string{"h"}},
		"//h:1/3":                        {Hosts: []string{"h:1"}, Path: []string{"3"}},
		"//h1,h2:2,[::1]:3/name/4":       {Hosts: []string{"h1", "h2:2", "[::1]:3"}, Path: []string{"name", "4"}},
		"//u:p@h":                        {User: "u", Password: Text("p"), Hosts: []string{"h"}},
		"//:p%40%2F%3F@h/":               {Password: Text("p@/?"), Hosts: []string{"h"}},
		"//u:a:b/c@d@h":                  {User: "u", Password: Text("a:b/c@d"), Hosts: []string{"h"}},
		"//u@h?password_file=pw":         {User: "u", Password: Text(canary), Hosts: []string{"h"}},
		"//h?password_file=" + dir + "/": {}, // a folder: an error
	} {
		u, err := split("redis", rest, true)
		if want.Hosts == nil {
			if err == nil {
				t.Errorf("%s: no error", rest)
			}
			continue
		}
		if err != nil || u.User != want.User || u.Password.Now() != want.Password.Now() || !slices.Equal(u.Hosts, want.Hosts) || !slices.Equal(u.Path, want.Path) {
			t.Errorf("%s: %+v, %v", rest, u, err)
		}
	}
	u, err := split("redis", "//h?password_file=pw&prefix=a:", true)
	if want := "//h?password_file=" + strings.ReplaceAll(filepath.Join(dir, "pw"), "/", "%2F") + "&prefix=a%3A"; err != nil || u.text != want {
		t.Errorf("resolved to %q, %v, want %q", u.text, err, want)
	}
	t.Setenv(PasswordVariable, "from the environment")
	if u, err := split("redis", "//h", true); err != nil || u.Password.Now() != "from the environment" {
		t.Errorf("the password of the environment: %v", err)
	}
	if u, err := split("redis", "//u:p@h", true); err != nil || u.Password.Now() != "p" {
		t.Errorf("the URL's password counts first: %v", err)
	}
}

// A resolved URL means the same to a process without our environment.
func TestResolvedURLHasThePasswordOfTheEnvironment(t *testing.T) {
	t.Setenv(PasswordVariable, canary+"@/?:#")
	for rest, user := range map[string]string{"//h/0": "", "//u%3Ax@h?prefix=a@b": "u:x"} {
		u, err := split("redis", rest, true)
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(PasswordVariable, "")
		again, err := split("redis", u.text, true)
		t.Setenv(PasswordVariable, canary+"@/?:#")
		if err != nil || again.User != user || again.Password.Now() != canary+"@/?:#" || again.Hosts[0] != "h" {
			t.Errorf("%s: resolved to %+v, %v", rest, again, err)
		}
	}
}

// Each scheme has one name here, however it is written.
func TestSchemes(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{"PostgreSQL://h/d": "postgres", "postgres://h/d": "postgres", "Redis://h": "redis"} {
		if scheme, rest, ok := Cut(url); scheme != want || !ok || !strings.HasPrefix(rest, "//h") {
			t.Errorf("%s: %q, %q, %v", url, scheme, rest, ok)
		}
	}
}

var testForm = Form{Schemes: []string{"a", "as"}, Secure: []string{"as"}, Options: append([]string{"prefix"}, ServerOptions...)}

func TestWrongURLs(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"":                                    "none of a, as",
		canary:                                "none of a, as",
		canary + "://h":                       "none of a, as",
		"b://u:" + canary + "@h":              "none of a, as",
		"a:" + canary:                         "two slashes",
		"a:/" + canary:                        "two slashes",
		"a://":                                "host is missing",
		"a://u:" + canary + "@":               "host is missing",
		"a://u:" + canary + "@h1,":            "host is missing",
		"a://u:" + canary + "@h 1":            "a character that none has",
		"a://u:" + canary + "#@h#x":           "a character that none has",
		"a://u:" + canary + "@h:x":            "1 to 65535",
		"a://u:" + canary + "@h:0":            "1 to 65535",
		"a://u:" + canary + "@h,g:65536":      "1 to 65535",
		"a://h?password_file=/dev/null":       "password_file: the file is empty",
		"a://u%:" + canary + "@h":             "begins no escape",
		"a://u:" + canary + "%@h":             "begins no escape",
		"a://h?" + canary + "=1":              "known: prefix, password_file",
		"a://h?prefix=1&prefix=" + canary:     "twice",
		"a://h?" + canary + ";":               "cannot be read",
		"a://h?tls=" + canary:                 "true or false",
		"a://h?ca_file=":                      "ca_file is empty",
		"a://h?ca_file=storeurl.go":           "ca_file: there is no certificate in it",
		"a://:" + canary + "@h?password_file": "password_file is empty",
	} {
		u, err := Parse(url, testForm)
		if !errors.Is(err, driver.ErrURL) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), canary) {
			t.Errorf("Parse(%q) = %v, %v, want ErrURL, %q and no password", url, u, err, says)
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	for url, name := range map[string]string{
		"as://h:1": "h", "as://[::1]:1": "::1", "AS://h1,h2": "", "a://h?tls=true": "h", "a://h?server_name=x": "x", "as://h?tls=false": "h",
	} {
		if u, err := Parse(url, testForm); err != nil || u.TLS == nil || u.TLS.Config().ServerName != name {
			t.Errorf("Parse(%q) = %+v, %v, want TLS to %q", url, u, err, name)
		}
	}
	for _, url := range []string{"a://h", "a://h?tls=false&prefix=x"} {
		if u, err := Parse(url, testForm); err != nil || u.TLS != nil {
			t.Errorf("Parse(%q) = %+v, %v, want no TLS", url, u, err)
		}
	}
}

// For servers without users, the environment's password belongs to another store.
func TestWithoutUsers(t *testing.T) {
	t.Setenv(PasswordVariable, canary)
	form := Form{Schemes: []string{"a"}, NoUser: true}
	if u, err := Parse("a://h1,h2", form); err != nil || u.Password.Now() != "" {
		t.Errorf("%+v, %v, want no password", u, err)
	}
	if u, err := Parse("a://u:x@h", form); !errors.Is(err, driver.ErrURL) || !strings.Contains(err.Error(), "no user") {
		t.Errorf("with a user: %v, %v", u, err)
	}
}

func FuzzErrorsKeepSecrets(f *testing.F) {
	f.Add("a://u:", "@h?prefix=x")
	f.Fuzz(func(t *testing.T, before, after string) {
		if _, err := Parse(before+canary+after, testForm); err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("%q and %q: %v", before, after, err)
		}
	})
}
