// Package details encodes the description of a holder or waiter in the note that engines keep, and
// decodes it.
//
// A note with details is a text for people, a mark, and fields:
//
//	nightly backup <mark>h=web-7;u=anna;p=4242;g=backup;s=1764271024;.team=payments
//
// Programs that do not know the format show the text first. The mark is a blank and U+2063
// INVISIBLE SEPARATOR. The fields are h host, u user, p process id, g program, s start in seconds
// since 1970, l link, k kind, r the preference of a candidate for leadership. Each label is a field
// too, whose key is a period and the label's name.
//
// In a value, %XX replaces a percent sign, a semicolon, an equals sign, a control character and the
// bytes of U+2063. A note is only text if it has no mark, or if anything but fields follows its
// last mark.
package details

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/driver"
)

// Details are the Details of package leasehold, which documents them. The service encodes them as
// JSON.
type Details struct {
	Host    string            `json:"host,omitempty"`
	User    string            `json:"user,omitempty"`
	PID     int               `json:"pid,omitempty"`
	Program string            `json:"program,omitempty"`
	Started time.Time         `json:"started,omitzero"` // of a note: in whole seconds and UTC
	Link    string            `json:"link,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Text    string            `json:"text,omitempty"`
	Kind    string            `json:"kind,omitempty"`

	Preference int `json:"preference,omitempty"`
}

// Kinds of holders.
const (
	Manual   = "manual"
	Once     = "once"
	Reserved = "reserved"
	Keeps    = "keeps"
)

// Exit is the label with the exit code of a finished job of the kind Once.
const Exit = "exit"

const mark = " \u2063"

// lastSecond is the end of the year 9999, the last that RFC 3339 can write.
const lastSecond = 253402300799

// lastPID is far above what systems give.
const lastPID = 1<<31 - 1

// MostPreference is the highest preference; its negative is the lowest.
const MostPreference = 1_000_000_000

// Bare reports whether d has only a text.
func (d Details) Bare() bool {
	return d.Host == "" && d.User == "" && d.PID == 0 && d.Program == "" && d.Started.IsZero() && d.Link == "" && len(d.Labels) == 0 && d.Kind == "" && d.Preference == 0
}

// Renews reports whether a lease of that kind is meant to be renewed.
func (d Details) Renews() bool { return d.Kind == "" || d.Kind == Keeps }

// Check returns nil if a note of d decodes to the same details, as far as its length allows.
func (d Details) Check() error {
	for _, field := range []struct{ what, value string }{{"host", d.Host}, {"user", d.User}, {"program", d.Program}, {"kind", d.Kind}, {"text", d.Text}} {
		if !utf8.ValidString(field.value) {
			return fmt.Errorf("details: the %s is not UTF-8", field.what)
		}
	}
	for label, value := range d.Labels {
		if label == "" || !utf8.ValidString(label) || !utf8.ValidString(value) {
			return fmt.Errorf("details: label %q is empty, or not UTF-8", label)
		}
	}
	switch {
	case d.PID < 0, d.PID > lastPID:
		return fmt.Errorf("details: a process id of %d", d.PID)
	case !d.Started.IsZero() && (d.Started.Unix() < 1 || d.Started.Unix() > lastSecond):
		return errors.New("details: a start before 1970 or after 9999")
	case d.Preference > MostPreference || d.Preference < -MostPreference:
		return fmt.Errorf("details: a preference of %d", d.Preference)
	case d.Link != "" && !isLink(d.Link):
		return errors.New("details: a link that is no URL of http or https, or has a password")
	}
	return nil
}

// isLink reports whether a page may offer the link. It refuses other URLs, and those that seem to
// lead to another host than they do.
func isLink(link string) bool {
	u, err := url.Parse(link)
	return err == nil && utf8.ValidString(link) && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil && !strings.ContainsFunc(link, blank)
}

func blank(r rune) bool { return r <= ' ' || r == 0x7f || r == '\\' }

// Or returns d with its zero fields taken from other.
func (d Details) Or(other Details) Details {
	d.Host, d.User, d.Program = cmp.Or(d.Host, other.Host), cmp.Or(d.User, other.User), cmp.Or(d.Program, other.Program)
	d.Link, d.Text, d.Kind = cmp.Or(d.Link, other.Link), cmp.Or(d.Text, other.Text), cmp.Or(d.Kind, other.Kind)
	d.PID, d.Preference = cmp.Or(d.PID, other.PID), cmp.Or(d.Preference, other.Preference)
	if d.Started.IsZero() {
		d.Started = other.Started
	}
	if len(other.Labels) > 0 {
		labels := maps.Clone(other.Labels)
		maps.Copy(labels, d.Labels)
		d.Labels = labels
	}
	return d
}

// Note returns d as a note, which may be too long for an engine. Of returns the same details if
// they pass Check, except for the fraction of a second of Started, and a text that equals
// Summary.
func (d Details) Note() string {
	if d.Bare() && !strings.Contains(d.Text, mark) {
		return d.Text
	}
	var pid, started, preference string
	if d.PID > 0 {
		pid = strconv.Itoa(d.PID)
	}
	if !d.Started.IsZero() {
		started = strconv.FormatInt(d.Started.Unix(), 10)
	}
	if d.Preference != 0 {
		preference = strconv.Itoa(d.Preference)
	}
	fields := make([]string, 0, 8+len(d.Labels))
	for _, f := range []struct{ key, value string }{
		{"h", d.Host}, {"u", d.User}, {"p", pid}, {"g", d.Program}, {"s", started}, {"l", d.Link}, {"k", d.Kind}, {"r", preference},
	} {
		if f.value != "" {
			fields = append(fields, f.key+"="+escape(f.value))
		}
	}
	for _, label := range slices.Sorted(maps.Keys(d.Labels)) {
		fields = append(fields, "."+escape(label)+"="+escape(d.Labels[label]))
	}
	return d.Shown() + mark + strings.Join(fields, ";")
}

func escape(value string) string {
	if !strings.ContainsFunc(value, isSpecial) {
		return value
	}
	var b strings.Builder
	for _, r := range value {
		if !isSpecial(r) {
			b.WriteRune(r)
			continue
		}
		for _, c := range []byte(string(r)) {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func isSpecial(r rune) bool {
	return r == '%' || r == ';' || r == '=' || r < ' ' || r == 0x7f || r == '\u2063'
}

// Of returns the details of a note. If it has none, the note is their text.
func Of(note string) Details {
	text, fields, ok := split(note)
	d := Details{Text: note}
	if !ok || !d.read(fields) || d.Bare() && !strings.Contains(text, mark) { // Note needs no mark for bare details
		return Details{Text: note}
	}
	if d.Text = text; text == d.Summary() {
		d.Text = ""
	}
	return d
}

// Text returns the part of a note for people: the text of its details, or their Summary.
func Text(note string) string {
	if !strings.Contains(note, mark) {
		return note
	}
	return Of(note).Shown()
}

// Shown returns the text of d, or else its Summary.
func (d Details) Shown() string { return cmp.Or(d.Text, d.Summary()) }

// split cuts a note at its last mark. It ignores a text that is too long to be a note.
func split(note string) (text, fields string, ok bool) {
	at := strings.LastIndex(note, mark)
	if at < 0 || len(note) > driver.MaxNote || !utf8.ValidString(note) {
		return note, "", false
	}
	return note[:at], note[at+len(mark):], true
}

// read parses the fields of a note. It returns false if they are not fields.
func (d *Details) read(fields string) bool {
	if fields == "" {
		return true
	}
	seen := uint32(0) // the letters of fields so far
	for field := range strings.SplitSeq(fields, ";") {
		key, value, ok := strings.Cut(field, "=")
		if !ok || key == "" {
			return false
		}
		if len(key) == 1 {
			letter := uint32(1) << (key[0] & 31)
			if seen&letter != 0 {
				return false
			}
			seen |= letter
		}
		if value, ok = unescape(value); !ok || !d.set(key, value) {
			return false
		}
	}
	return true
}

func (d *Details) set(key, value string) bool {
	if label, is := strings.CutPrefix(key, "."); is {
		label, ok := unescape(label)
		if !ok || label == "" {
			return false
		}
		if d.Labels == nil {
			d.Labels = make(map[string]string)
		}
		_, twice := d.Labels[label]
		d.Labels[label] = value
		return !twice
	}
	switch key {
	case "h":
		d.Host = value
	case "u":
		d.User = value
	case "g":
		d.Program = value
	case "k":
		d.Kind = value
	case "l":
		if isLink(value) {
			d.Link = value
		}
	case "p":
		n, ok := number(value, lastPID)
		d.PID = int(n)
		return ok
	case "r":
		digits, negative := strings.CutPrefix(value, "-")
		n, ok := number(digits, MostPreference)
		if d.Preference = int(n); negative {
			d.Preference = -d.Preference
		}
		return ok
	case "s":
		n, ok := number(value, lastSecond)
		d.Started = time.Unix(n, 0).UTC()
		return ok
	default: // from a later version
		return strings.Trim(key, "abcdefghijklmnopqrstuvwxyz") == ""
	}
	return true
}

// number parses a positive number as Note writes it.
func number(text string, most int64) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n > 0 && n <= most && strconv.FormatInt(n, 10) == text
}

func unescape(value string) (string, bool) {
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f || r == '=' }) {
		return "", false
	}
	plain, err := url.PathUnescape(value)
	return plain, err == nil && utf8.ValidString(plain) && escape(plain) == value
}

// Summary returns host and program, and the user if a person holds.
func (d Details) Summary() string {
	host := d.Host
	if d.User != "" && (host == "" && d.Process() == "" || d.personal()) {
		host = strings.TrimSuffix(d.User+"@"+d.Host, "@")
	}
	return strings.TrimSpace(host + " " + d.Process())
}

// personal reports whether a person holds, rather than a program.
func (d Details) personal() bool { return d.Kind == Manual || d.Kind == Reserved }

// Process returns the program with its process id.
func (d Details) Process() string {
	if d.PID > 0 {
		return fmt.Sprintf("%s[%d]", d.Program, d.PID)
	}
	return d.Program
}

// Who returns a short description: the text, or else the process, without the host.
func (d Details) Who() string {
	who := d.Process()
	if d.User != "" && (who == "" || d.personal()) {
		who = strings.TrimSpace(d.User + " " + who)
	}
	return cmp.Or(d.Text, who)
}

// Line returns who and where in one line.
func (d Details) Line() string {
	switch {
	case d.Text == "":
		return d.Summary()
	case d.Host == "" || strings.Contains(d.Text, d.Host):
		return d.Text
	}
	return d.Text + " on " + d.Host
}

// began is when this process started, as far as it knows.
var began = time.Now()

// Mine returns the details of this process. It uses no name service, which may hang.
func Mine() Details {
	host, _ := os.Hostname() // details without a host are still details
	return Details{
		Host: valid(host), User: user(), PID: os.Getpid(), Program: valid(filepath.Base(os.Args[0])),
		Started: began.Truncate(time.Second).UTC(),
	}
}

// user is the name in the environment, or else the user's number.
func user() string {
	if name := cmp.Or(os.Getenv("USER"), os.Getenv("LOGNAME"), os.Getenv("USERNAME")); name != "" {
		return valid(name)
	}
	switch uid := os.Getuid(); {
	case uid == 0:
		return "root"
	case uid > 0:
		return strconv.Itoa(uid)
	}
	return "" // on Windows
}

func valid(text string) string { return strings.ToValidUTF8(text, "?") }

// Fit returns the note of said, with its zero fields taken from filled if there is room. The note
// may still be too long, if said's own is.
func Fit(said, filled Details) string {
	if note := said.Or(filled).Note(); len(note) <= driver.MaxNote {
		return note
	}
	return said.Note()
}
