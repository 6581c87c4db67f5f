package s3lock

import (
	"strings"
	"testing"

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
