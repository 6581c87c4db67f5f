package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// A reserved name is refused to everybody, with the reason, until the printed command ends it.
func TestReserve(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	out := c.want(0, "reserve", "deploy", "--reason", "migrating the database", "--for", "2h").stdout
	first, end, ok := strings.Cut(out, "\nTo end it: leasehold ")
	if !ok || first != "reserved deploy for 2h0m0s" && first != "reserved deploy for 2h" {
		t.Fatalf("printed %q", out)
	}
	contains(t, c.want(1, "run", "-n", "deploy", "--", "true").stderr, "migrating the database")
	contains(t, c.want(0, "show", "deploy").stdout, "migrating the database")
	c.want(1, "reserve", "deploy", "--reason", "me too")
	c.want(1, "reserve", "deploy", "--reason", "me too", "--wait", "0.1")
	c.want(0, strings.Fields(end)...)
	contains(t, c.want(0, "show", "deploy").stdout, "deploy is free")

	var v leaseView
	if err := json.Unmarshal([]byte(c.want(0, "reserve", "deploy", "--reason", "r", "--json").stdout), &v); err != nil || v.Owner == "" || v.TTL < 7*60*60 || v.TTL > 8*60*60 {
		t.Errorf("%+v, %v", v, err)
	}
	c.want(64, "reserve", "other")
	c.want(64, "reserve", "other", "--reason", " ")
	c.want(64, "reserve", "other", "--reason", "r", "--for", "0")
}
