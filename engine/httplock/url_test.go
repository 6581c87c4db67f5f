package httplock_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/memory"
)

func TestURLs(t *testing.T) {
	t.Parallel()
	const canary = "s3cr3t-canary"
	url := instances(t, memory.NewServer(), 1, nil) // of HTTP/1.1 alone
	d, err := httplock.OpenURL(t.Context(), url+"/?events=a/")
	if err != nil {
		t.Fatal(err)
	}
	if engine := d.Features().Engine; engine != "http" {
		t.Errorf("the engine is called %q", engine)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	for _, wrong := range []string{
		"http://:" + canary + "@locks.test", "http://h1,h2", "ftp://h", "http://h?token=" + canary, "https://h?ca_file=/nowhere/" + canary,
	} {
		if _, err := httplock.OpenURL(t.Context(), wrong); err == nil || !strings.Contains(wrong, "nowhere") && (!errors.Is(err, driver.ErrURL) || strings.Contains(err.Error(), canary)) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
