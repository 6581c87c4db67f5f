package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/historyfile"
)

// A history file belongs to one store, however the URL says which one, and whoever connects to it. Earlier
// versions recorded no options. Their files go to the first store that opens them.
func TestHistoryIsOfOneStore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ store, same, other, earlier string }{
		{"kubernetes://ns?context=prod", "", "kubernetes://ns?context=staging", "kubernetes://ns"},
		{"kubernetes://ns", "", "kubernetes://ns?context=staging", ""},
		{"kubernetes://ns?context=staging", "", "kubernetes://ns", "kubernetes://ns"},
		{"s3://b/p?endpoint=http%3A%2F%2Fh%3A1&region=r", "s3://key:secret@b/p?endpoint=http%3A%2F%2Fh%3A1", "s3://b/p?endpoint=http%3A%2F%2Fh%3A2", "s3://b/p"},
		{"postgres://u:secret@h/db?schema=a", "postgres://w@h/db?password_file=%2Fx&pooled=true&schema=a", "postgres://u:secret@h/db?schema=b", "postgres://***@h/db"},
		{"redis://h?prefix=a%3A&replicas=1", "redis://:secret@h?prefix=a%3A", "redis://h?prefix=b%3A", "redis://h"},
		{"memcached://h?prefix=a@b", "", "memcached://h?prefix=a@c", "memcached:***"},
		{"sqlite:/d/x=1.db", "", "sqlite:/d/x=2.db", "sqlite:/d/x=***"},
		{"sqlite:/d/x?1.db", "", "sqlite:/d/x?2.db", "sqlite:/d/x"},
		{"sqlite:/d/x.db", "", "sqlite:/d/y.db", "sqlite:/d/x.db"},
	} {
		path := filepath.Join(t.TempDir(), "history")
		open := func(url string) error {
			s := service{app: &app{storeURL: url}, history: historyFlags{path: path}}
			if _, err := s.openHistory(t.Context()); err != nil {
				return err
			}
			return s.opts.History.File.(*historyfile.File).Close()
		}
		if c.earlier != "" {
			f, err := historyfile.Open(t.Context(), path, historyfile.Options{Store: c.earlier})
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
		for range 2 {
			for _, url := range []string{c.store, c.same} {
				if url == "" {
					continue
				}
				if err := open(url); err != nil {
					t.Errorf("%s: %v", url, err)
				}
			}
			if err := open(c.other); err == nil || !strings.Contains(err.Error(), "name another file") || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s has the history of %s: %v", c.other, c.store, err)
			}
		}
	}
}
