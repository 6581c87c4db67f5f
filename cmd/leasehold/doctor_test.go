//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The doctor names the store that the others would use, and who has chosen it.
func TestDoctorTellsWhichStore(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	file := c.store
	c.wantRun(0, "job", "--", "true")
	check := func(code int, from, store string, args ...string) {
		t.Helper()
		var v doctorView
		o := c.call(append(args, "doctor", "--json")...)
		o.json(t, &v)
		if o.code != code || v.From != from || v.Store != store || o.stderr != "" {
			t.Errorf("exit code %d, from %q, store %q, %q; want %d, %q, %q\n%s", o.code, v.From, v.Store, o.stderr, code, from, store, o.stdout)
		}
	}
	check(0, "LEASEHOLD_STORE", file)
	check(0, "--store", file, "--store", file)
	c.store = ""
	config := filepath.Join(c.dir, ".config", "leasehold", "config")
	if err := os.MkdirAll(filepath.Dir(config), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte("store = "+file+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check(0, config, file)
	if err := os.Remove(config); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(c.dir, ".local/state/leasehold/leasehold.db")
	check(1, "default", "sqlite:"+own)
	if _, err := os.Stat(own); err == nil {
		t.Error("the doctor has made the file")
	}
	if err := os.MkdirAll(filepath.Dir(own), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, own, nil)
	check(1, "default", "sqlite:"+own)
	if size := len(read(t, own)); size > 0 {
		t.Errorf("the doctor has written %d bytes into the file", size)
	}
}

func TestDoctorInText(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.wantRun(0, "job", "--", "true")
	o := c.want(0, "doctor")
	contains(t, o.stdout, "ok  store        "+c.store+" (LEASEHOLD_STORE)\n", "round trip   median ", "rights       can take")
	c.store = "redis://" + nobody
	o = c.call("--store", "redis://u:"+canary+"@"+nobody, "doctor")
	contains(t, o.stdout, "warning  store  redis://u@"+nobody+" (--store): everybody", "password_file", "error    reach", "refused", "→ nothing listens there")
	if o.code != 69 || o.stderr != "" {
		t.Errorf("exit code %d, %q", o.code, o.stderr)
	}
	for _, line := range []string{"doctor x", "doctor --nosuch", "--store nosuch:x doctor", "--store redis:// doctor", "--require-shared --store sqlite: doctor"} {
		c.want(64, strings.Fields(line)...)
	}
}

// A store that takes connections and says nothing does not hold the doctor up, and neither does
// whoever has had enough.
func TestDoctorIsNotHeldUp(t *testing.T) {
	t.Parallel()
	var left, stopped []*job
	for _, url := range []string{
		"redis://ADDR", "redis+sentinel://ADDR/main", "redis+cluster://ADDR", "redlock://ADDR," + nobody + ",ADDR",
		"postgres://u:p@ADDR/db", "mysql://u:p@ADDR/db", "zookeeper://ADDR", "etcd://ADDR", "memcached://ADDR", "http://ADDR",
	} {
		silent, c := silence(t), newCLI(t)
		c.store = strings.ReplaceAll(url, "ADDR", silent.addr)
		left, stopped = append(left, c.start("doctor")), append(stopped, c.start("doctor"))
		silent.called()
	}
	for _, j := range stopped {
		j.signal(syscall.SIGTERM)
	}
	for _, j := range stopped {
		if code := j.code(); code != 143 && code != 69 { // it may have been through
			t.Errorf("exit code %d: %s", code, j.errors())
		}
	}
	began := time.Now()
	for _, j := range left {
		if code := j.code(); code != 69 {
			t.Errorf("%v: exit code %d: %s", j.cmd.Args, code, j.errors())
		}
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}
