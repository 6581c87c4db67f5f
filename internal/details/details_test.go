package details_test

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/details"
)

var whole = details.Details{
	Host: "web-7", User: "anna", PID: 4242, Program: "backup", Started: time.Unix(1764271024, 0).UTC(),
	Link: "https://ci.example.com/runs/17?x=1;y=2#3", Labels: map[string]string{"team": "payments", "exit": "0", "a=b;c%\u2063 \u2063": "\n\x00 \u2063x=y;\u202e"},
	Text: "nightly backup", Kind: details.Once, Preference: -3,
}

// A note is read back as it was written, whatever its fields contain.
func TestNotesAreReadAsWritten(t *testing.T) {
	for name, d := range map[string]details.Details{
		"nothing":               {},
		"text":                  {Text: "x"},
		"text with the mark":    {Text: "x \u2063h=web-7"},
		"text that is the mark": {Text: " \u2063"},
		"two marks":             {Text: " \u2063 \u2063h=a"},
		"all":                   whole,
		"without text":          {Host: "web-7", PID: 1, Program: "sleep"},
		"no program":            {Host: "web-7", PID: 1},
		"text and host":         {Host: " \u2063h=1", Text: "\u2063"},
		"label of equal name":   {Host: "a", Labels: map[string]string{"h": "b"}},
		"empty value":           {Labels: map[string]string{"a": ""}},
		"preference alone":      {Preference: details.MostPreference},
		"least preference":      {Host: "a", Preference: -details.MostPreference},
	} {
		t.Run(name, func(t *testing.T) {
			if err := d.Check(); err != nil {
				t.Fatal(err)
			}
			note := d.Note()
			if err := driver.CheckNote(note); err != nil {
				t.Fatal(err)
			}
			if got := details.Of(note); !reflect.DeepEqual(got, d) {
				t.Errorf("%q is read as\n%+v, it was\n%+v", note, got, d)
			}
		})
	}
}

// A reader without knowledge of details drops unprintable characters, and then has the text first.
func TestTextComesFirst(t *testing.T) {
	if note := whole.Note(); !strings.HasPrefix(note, "nightly backup \u2063h=web-7;u=anna;p=4242;g=backup;s=1764271024;l=https://") {
		t.Errorf("%q", note)
	}
	if note := (details.Details{Host: "web-7", PID: 7, Program: "sleep"}).Note(); note != "web-7 sleep[7] \u2063h=web-7;p=7;g=sleep" {
		t.Errorf("%q", note)
	}
	if note := (details.Details{Text: "plain"}).Note(); note != "plain" {
		t.Errorf("%q", note)
	}
}

// A note of another program is text, unless it equals what Note writes.
func TestForeignNotesAreText(t *testing.T) {
	for _, note := range []string{
		"", "web-7 sleep[4242]", "h=web-7", "x \u2063", "x \u2063h", "x \u2063h=a;", "x \u2063;h=a", "x \u2063=a", "x \u2063h=a;h=b", "x \u2063h=a;u=c;h=b", "x \u2063.a=;.b=;.%61=",
		"x \u2063p=0", "x \u2063p=-1", "x \u2063p=+1", "x \u2063p=01", "x \u2063p=99999999999999999999", "x \u2063p=", "x \u2063s=253402300800", "x \u2063s=1.5",
		"x \u2063r=", "x \u2063r=0", "x \u2063r=-0", "x \u2063r=-", "x \u2063r=+1", "x \u2063r=01", "x \u2063r=--1", "x \u2063r=1000000001", "x \u2063r=-1000000001",
		"x \u2063h=%", "x \u2063h=%4", "x \u2063h=%zz", "x \u2063h=%ff", "x \u2063h=%FF", "x \u2063h=a\nb", "x \u2063h=a=b", "x \u2063.=a", "x \u2063H=a", "x \u2063h=a\xff",
		"x\u2063h=a", "x \u2063l=javascript:alert(1)", "x \u2063z=1",
		"x \u2063h=" + strings.Repeat("a", driver.MaxNote),
	} {
		if d := details.Of(note); !reflect.DeepEqual(d, details.Details{Text: note}) {
			t.Errorf("%q is read as %+v", note, d)
		}
		if text := details.Text(note); text != note {
			t.Errorf("of %q is shown %q", note, text)
		}
	}
}

// Fields of a later version are ignored.
func TestUnknownFieldsArePassedOver(t *testing.T) {
	if d := details.Of("x \u2063h=a;z=1;region=eu;.l=v"); d.Host != "a" || d.Text != "x" || d.Labels["l"] != "v" || len(d.Labels) != 1 {
		t.Errorf("%+v", d)
	}
}

func TestOnlyWebAddressesAreLinks(t *testing.T) {
	for link, is := range map[string]bool{
		"https://a.example/x?y=z": true, "http://10.0.0.1:8080": true, "https://[::1]/": true,
		"javascript:alert(1)": false, "data:text/html,x": false, "//a.example": false, "a.example": false, "file:///etc/passwd": false, "https:///x": false, "https://:80/": false,
		"https://user:secret@a.example/": false, "https://a.example@b.example/": false, "https://a.example\\@b.example": false, "https://a.example/ x": false,
		"https://a.example/\n": false, "https://a.example/\xff": false, " https://a.example": false,
	} {
		d := details.Details{Host: "h", Link: link}
		if err := d.Check(); (err == nil) != is {
			t.Errorf("%q: %v", link, err)
		}
		if got := details.Of(d.Note()).Link; utf8.ValidString(link) && ((got == link) != is || !is && got != "") {
			t.Errorf("%q is read as the link %q", link, got)
		}
	}
}

func TestBadDetailsAreRefused(t *testing.T) {
	for name, d := range map[string]details.Details{
		"host": {Host: "\xff"}, "user": {User: "\xff"}, "program": {Program: "\xff"}, "kind": {Kind: "\xff"}, "text": {Text: "\xff"},
		"preference": {PID: 1, Preference: math.MinInt}, "high": {Preference: details.MostPreference + 1}, "low": {Preference: -details.MostPreference - 1},
		"pid": {PID: -1}, "great pid": {PID: 1 << 31}, "started": {Started: time.Unix(0, 0)}, "late": {Started: time.Unix(1<<40, 0)},
		"label": {Labels: map[string]string{"": "x"}}, "label's name": {Labels: map[string]string{"\xff": "x"}}, "label's value": {Labels: map[string]string{"x": "\xff"}},
	} {
		if err := d.Check(); err == nil {
			t.Errorf("%s: %+v passes", name, d)
		}
	}
}

// What the user said has priority over what was filled in.
func TestWhatIsFilledInGivesWay(t *testing.T) {
	text := strings.Repeat("x", driver.MaxNote)
	if note := details.Fit(details.Details{Text: text}, whole); note != text {
		t.Errorf("%q", note)
	}
	if d := details.Of(details.Fit(details.Details{Text: "y"}, whole)); d.Host != "web-7" || d.Text != "y" {
		t.Errorf("%+v", d)
	}
}

func TestPeopleSeeWhoAndWhere(t *testing.T) {
	for _, c := range []struct {
		d                  details.Details
		summary, who, line string
	}{
		{details.Details{}, "", "", ""},
		{details.Details{Text: "x"}, "", "x", "x"},
		{details.Details{Host: "web-7", User: "anna", PID: 7, Program: "sleep"}, "web-7 sleep[7]", "sleep[7]", "web-7 sleep[7]"},
		{details.Details{Host: "web-7", User: "anna", PID: 7, Program: "script", Kind: details.Manual}, "anna@web-7 script[7]", "anna script[7]", "anna@web-7 script[7]"},
		{details.Details{User: "anna", Kind: details.Reserved, Text: "moving disks"}, "anna", "moving disks", "moving disks"},
		{details.Details{User: "anna"}, "anna", "anna", "anna"},
		{details.Details{Host: "web-7", Text: "nightly"}, "web-7", "nightly", "nightly on web-7"},
		{details.Details{Host: "web-7", Text: "web-7: nightly"}, "web-7", "web-7: nightly", "web-7: nightly"},
	} {
		if s, w, l := c.d.Summary(), c.d.Who(), c.d.Line(); s != c.summary || w != c.who || l != c.line {
			t.Errorf("%+v: %q, %q, %q", c.d, s, w, l)
		}
	}
}

func TestMineAreSound(t *testing.T) {
	t.Setenv("USER", "")
	t.Setenv("LOGNAME", "an\xffna")
	d := details.Mine()
	if err := d.Check(); err != nil || d.User != "an?na" || d.PID == 0 || d.Program == "" || d.Started.IsZero() {
		t.Errorf("%+v, %v", d, err)
	}
}

// No note crashes its reader. Details that were read can be written and read back.
func FuzzOf(f *testing.F) {
	f.Add(whole.Note())
	f.Add("x \u2063h=a;.%3D=%00;l=https://a")
	f.Add(" \u2063 \u2063")
	f.Fuzz(func(t *testing.T, note string) {
		d := details.Of(note)
		details.Text(note)
		if !utf8.ValidString(note) {
			if d.Text != note {
				t.Errorf("%q is read as %+v", note, d)
			}
			return
		}
		if err := d.Check(); err != nil {
			t.Errorf("%q is read as %+v: %v", note, d, err)
		}
		again := d.Note()
		if len(again) > driver.MaxNote {
			return
		}
		if got := details.Of(again); !reflect.DeepEqual(got, d) {
			t.Errorf("%q is read as %+v, and then as %+v", note, d, got)
		}
	})
}

// Details are either read back as they were, or refused.
func FuzzNote(f *testing.F) {
	f.Add("web-7", "anna", 1, "x", int64(1), "https://a", "k", "v", "text", "once")
	f.Fuzz(func(t *testing.T, host, user string, pid int, program string, started int64, link, label, value, text, kind string) {
		d := details.Details{Host: host, User: user, PID: pid, Program: program, Link: link, Labels: map[string]string{label: value}, Text: text, Kind: kind}
		if started > 0 && started < 1<<37 {
			d.Started = time.Unix(started, 0).UTC()
		}
		note := d.Note()
		if d.Check() != nil || driver.CheckNote(note) != nil {
			return
		}
		got := details.Of(note)
		if d.Text == d.Summary() {
			d.Text = ""
		}
		if !reflect.DeepEqual(got, d) {
			t.Errorf("%q is read as %+v, it was %+v", note, got, d)
		}
	})
}
