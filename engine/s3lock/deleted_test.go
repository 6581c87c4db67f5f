package s3lock

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// A store that tells the version of a delete marker, as AWS does: the error has it.
func TestVersionOfTheDeleteMarker(t *testing.T) {
	alone(t)
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("x-amz-delete-marker", "true")
		w.Header().Set("x-amz-version-id", "vid4711")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "<Error><Code>NoSuchKey</Code></Error>")
	}))
	defer store.Close()
	d, err := OpenURL(t.Context(), "s3://k:s@locks/a?endpoint="+url.QueryEscape(store.URL))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err = d.(*Driver).store.Read(t.Context(), "x"); !errors.Is(err, ErrDeleted) || !strings.Contains(err.Error(), "bucket locks, key a/x.json, version of the marker vid4711") {
		t.Errorf("read: %v", err)
	}
}
