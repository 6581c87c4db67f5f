package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// An event is a message of this program. It is printed as a line on standard error, with the time
// if -v is set. With --json it is an object on a line of its own.
type event struct {
	Time  string `json:"time"`
	Kind  string `json:"event" enum:"store,serving,warning,waiting,recovered,acquired,renewal_failed,wanted,ending,exited,released,looked,more,history,error"`
	Name  string `json:"name,omitempty"`
	Token uint64 `json:"token,string,omitempty"`
	Text  string `json:"text" about:"text for people to read"`
	Next  string `json:"next,omitempty" about:"the value of --after for the next page"`
}

// Kinds of events.
const (
	onStore         = "store"
	onServe         = "serving"
	onWarning       = "warning"
	onWait          = "waiting"
	onRecovered     = "recovered" // the store answers again
	onGrant         = "acquired"
	onRenewalFailed = "renewal_failed"
	onWanted        = "wanted" // others wait for a lease that is held
	onEnding        = "ending" // the command, or processes that it left, are being ended
	onExit          = "exited"
	onRelease       = "released"
	onLooked        = "looked" // how many locks were read, for a list that is filtered or sorted
	onMore          = "more"   // a list has more pages
	onHistory       = "history"
	onError         = "error"
)

// stamp returns the current time for an event.
func stamp() string { return time.Now().Format("2006-01-02T15:04:05.000Z07:00") }

// alwaysTold are the kinds of events that --json prints without -v.
var alwaysTold = []string{onWarning, onRecovered, onLooked, onMore, onError}

// tell reports an event to every user.
func (a *app) tell(kind, name string, token uint64, format string, args ...any) {
	a.emit(event{Kind: kind, Name: name, Token: token, Text: strings.TrimSpace(fmt.Sprintf(format, args...))})
}

// more reports that a list continues after next.
func (a *app) more(next string) {
	a.emit(event{Kind: onMore, Text: "there may be more: go on with --after " + next, Next: next})
}

func (a *app) emit(e event) {
	if !a.json {
		a.write(e.Text)
	} else if a.verbose || slices.Contains(alwaysTold, e.Kind) {
		e.Time = stamp()
		a.encode(e)
	}
}

// detail reports an event if -v is set.
func (a *app) detail(kind, name string, token uint64, format string, args ...any) {
	if a.verbose {
		a.tell(kind, name, token, format, args...)
	}
}

func (a *app) encode(v any) {
	_ = writeJSON(a.stderr, v, "") // there is no place to report an error
}

// write writes lines for people in one piece. They may contain names and notes of other users.
func (a *app) write(text string) {
	var b strings.Builder
	if a.verbose {
		b.WriteString(stamp() + " ")
	}
	b.WriteString("leasehold: ")
	for line := range strings.Lines(text) {
		if line = plain(line); line != "" {
			b.WriteString(line + "\n")
		}
	}
	fmt.Fprint(a.stderr, b.String())
}
