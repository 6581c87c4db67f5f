package stores

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRedisURLs(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv(passwordVariable, "")
	if err := os.WriteFile("pw", []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for rest, want := range map[string]serverURL{
		"//h":                            {hosts: []string{"h"}},
		"//h:1/3":                        {hosts: []string{"h:1"}, path: []string{"3"}},
		"//h1,h2:2,[::1]:3/name/4":       {hosts: []string{"h1", "h2:2", "[::1]:3"}, path: []string{"name", "4"}},
		"//u:p@h":                        {user: "u", password: "p", hosts: []string{"h"}},
		"//:p%40%2F%3F@h/":               {password: "p@/?", hosts: []string{"h"}},
		"//u:a:b/c@d@h":                  {user: "u", password: "a:b/c@d", hosts: []string{"h"}},
		"//u@h?password_file=pw":         {user: "u", password: canary, hosts: []string{"h"}},
		"//h?password_file=" + dir + "/": {}, // a folder: an error
	} {
		u, err := parseRedis("redis", rest)
		if want.hosts == nil {
			if err == nil {
				t.Errorf("%s: no error", rest)
			}
			continue
		}
		if err != nil || u.user != want.user || u.password != want.password || !slices.Equal(u.hosts, want.hosts) || !slices.Equal(u.path, want.path) {
			t.Errorf("%s: %+v, %v", rest, u, err)
		}
	}
	u, err := parseRedis("redis", "//h?password_file=pw&prefix=a:")
	if want := "//h?password_file=" + strings.ReplaceAll(filepath.Join(dir, "pw"), "/", "%2F") + "&prefix=a%3A"; err != nil || u.text != want {
		t.Errorf("resolved to %q, %v, want %q", u.text, err, want)
	}
	t.Setenv(passwordVariable, "from the environment")
	if u, err := parseRedis("redis", "//h"); err != nil || u.password != "from the environment" {
		t.Errorf("the password of the environment: %v", err)
	}
	if u, err := parseRedis("redis", "//u:p@h"); err != nil || u.password != "p" {
		t.Errorf("the URL's password counts first: %v", err)
	}
}

func TestRedisStoresOpen(t *testing.T) {
	for _, url := range []string{
		"redis://127.0.0.1:1/2", "redis://h?prefix=", "redis://h?prefix=a:&replicas=2", "rediss://h", "rediss://h/1?server_name=x",
		"redis+sentinel://h1,h2,h3/mymaster", "redis+sentinel://h1/mymaster/2", "redis+cluster://h1,h2", "redis+cluster://h1?tls=true",
	} {
		e, rest, err := find(url)
		if err != nil {
			t.Fatal(err)
		}
		d, resolved, err := e.open(t.Context(), rest) // no server is there to answer
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if !strings.HasPrefix(resolved, "//") {
			t.Errorf("%s: resolved to %s", url, resolved)
		}
		if err := d.Close(); err != nil {
			t.Errorf("%s: close: %v", url, err)
		}
	}
}

func TestWrongRedisURLs(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"redis:" + canary:                           "two slashes",
		"redis://":                                  "host is missing",
		"redis://h1,,h2":                            "host is missing",
		"redis://h1,h2":                             "one host",
		"redis://h/x":                               "database",
		"redis://h/-1":                              "database",
		"redis://h/1/2":                             "nothing more",
		"redis://u:%zz" + canary + "@h":             "no escape",
		"redis://h?password=" + canary:              "unknown",
		"redis://h?prefix=a&prefix=b":               "twice",
		"redis://h?replicas=x":                      "replicas",
		"redis://h?replicas=-1":                     "replicas",
		"redis://h?rest=x":                          "rest is no duration",
		"redis://h?rest=1m":                         "at most 500ms",
		"redis://h?tls=" + canary:                   "true or false",
		"redis://u:" + canary + "@h?tls=x":          "true or false",
		"redis://u:" + canary + "@h?prefix=%7B":     "hash tag",
		"redis://u:" + canary + "@h?%zz":            "cannot be read",
		"redis://:" + canary + "@h?password_file=/": "exclude each other",
		"redis://h?password_file=":                  "password_file is empty",
		"redis+sentinel://h1":                       "primary's name",
		"redis+sentinel://h1/m/0/x":                 "primary's name",
		"redis+sentinel://h1/m/x":                   "database",
		"redis+cluster://h1/0":                      "no database",
	} {
		d, resolved, err := Open(t.Context(), url)
		if d != nil || resolved != "" || !errors.Is(err, ErrURL) {
			t.Errorf("Open(%q) = %v, %q, %v, want ErrURL", url, d, resolved, err)
			continue
		}
		if text := err.Error(); !strings.Contains(text, says) || strings.Contains(text, canary) {
			t.Errorf("Open(%q): %q, want %q and no password", url, text, says)
		}
	}
}

func FuzzRedisURLErrorsKeepSecrets(f *testing.F) {
	f.Add("//u:", "@h?replicas=x")
	f.Fuzz(func(t *testing.T, before, after string) {
		d, _, err := openRedis(t.Context(), before+canary+after)
		if err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("%q and %q: %v", before, after, err)
		}
		if d != nil {
			d.Close()
		}
	})
}
