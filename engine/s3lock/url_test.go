package s3lock

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/storeurl"
	"github.com/leasehold-go/leasehold/internal/storeurl/urltest"
)

const canary = urltest.Canary

// alone takes from the SDK what the machine has of settings.
func alone(t *testing.T) {
	t.Helper()
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_CA_BUNDLE", storeurl.PasswordVariable} {
		t.Setenv(name, "")
	}
	for _, name := range []string{"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"} {
		t.Setenv(name, "/nowhere")
	}
}

func TestURLsOpen(t *testing.T) {
	alone(t)
	for url, prefix := range map[string]string{
		"s3://locks?region=eu-central-1":                                                  "leasehold/",
		"s3://k:s@locks/a/b/?endpoint=https://h:9000&server_name=x":                       "a/b/",
		"s3://k:s@locks/a?endpoint=http://127.0.0.1:9000&region=x&path_style=false":       "a/",
		"S3://locks/a?endpoint=http://[::1]:9000/base":                                    "a/",
		"s3://:" + canary + "@locks?region=r" /* of the environment, for who has keys */ : "leasehold/",
	} {
		d, err := OpenURL(t.Context(), url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if f := d.Features(); f.Engine != "s3" || d.(*Driver).store.prefix != prefix {
			t.Errorf("%s: %+v, prefix %q", url, f, d.(*Driver).store.prefix)
		}
		if err := d.Close(); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestWrongURLs(t *testing.T) {
	alone(t)
	urltest.Wrong(t, OpenURL, map[string]string{
		"s3:" + canary:                           "two slashes",
		"s3://":                                  "host is missing",
		"s3://a,b?region=r":                      "one bucket",
		"s3://locks:9000?region=r":               "one bucket",
		"s3://locks":                             "no region",
		"s3://" + canary + "@locks?region=r":     "without a secret",
		"s3://locks?region=r&endpoint=" + canary: "http://HOST",
		"s3://locks?region=r&endpoint=ftp://h":   "http://HOST",
		"s3://locks?region=r&endpoint=http://u:" + canary + "@h":            "http://HOST",
		"s3://locks?region=r&path_style=" + canary:                          "true or false",
		"s3://locks?secret=" + canary:                                       "unknown",
		"s3://k:" + canary + "@b/" + strings.Repeat("a", 300) + "?region=r": "at most 200",
		"redis://u:" + canary + "@h":                                        "none of s3",
	})
}

// Keys in the SDK's own file are those that stand there now, or stood there before it was spoilt.
func TestKeysThatTheSDKFinds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "credentials")
	for name, value := range map[string]string{
		"AWS_SHARED_CREDENTIALS_FILE": path, "AWS_CONFIG_FILE": path + ".none", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "",
	} {
		t.Setenv(name, value)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	keys := func(name string) string {
		return "[default]\naws_access_key_id = " + name + "\naws_secret_access_key = secret of " + name + "\n"
	}
	f := &found{}
	for i, step := range []struct {
		do   func()
		want string
	}{
		{func() { write(keys("one")) }, "one"},
		{func() { write("") }, "one"},
		{func() { write("[default]\naws_access_key_id = tw") }, "one"},
		{func() { os.Remove(path) }, "one"},
		{func() { write(keys("two")) }, "two"},
	} {
		step.do()
		c, err := f.Retrieve(t.Context())
		if err != nil || c.AccessKeyID != step.want || c.SecretAccessKey != "secret of "+step.want || !c.CanExpire || time.Until(c.Expires) > findEvery {
			t.Errorf("step %d: %q, %v; want %q for a moment", i, c.AccessKeyID, err, step.want)
		}
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "of the environment")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "stays")
	if c, err := (&found{}).Retrieve(t.Context()); err != nil || c.AccessKeyID != "of the environment" || c.CanExpire {
		t.Errorf("%q, %v, looked for again: %v", c.AccessKeyID, err, c.CanExpire)
	}
}

// Without an access key in the URL the file has both keys; with one it has the other.
func TestKeysInAFile(t *testing.T) {
	t.Setenv(storeurl.PasswordVariable, "")
	path := filepath.Join(t.TempDir(), "keys")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("KEY:SE/CR+ET:\n")
	for url, want := range map[string][2]string{
		"s3://b?region=r&password_file=" + path:      {"KEY", "SE/CR+ET:"},
		"s3://KEY2@b?region=r&password_file=" + path: {"KEY2", "KEY:SE/CR+ET:"},
	} {
		u, err := storeurl.Parse(url, urlForm)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := keys(u).Retrieve(t.Context()); err != nil || c.AccessKeyID != want[0] || c.SecretAccessKey != want[1] {
			t.Errorf("%s: %q, %q, %v", url, c.AccessKeyID, c.SecretAccessKey, err)
		}
	}
	write("KEY\n")
	if d, err := OpenURL(t.Context(), "s3://b?region=r&password_file="+path); d != nil || !errors.Is(err, driver.ErrURL) {
		t.Errorf("no secret key: %v, %v", d, err)
	}
}
