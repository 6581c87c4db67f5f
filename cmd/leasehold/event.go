package main

import (
	"fmt"
	"strings"
	"time"
)

// An event is something that happens, as -v tells it: a line with the time on standard error,
// and with --json an object on a line of its own.
type event struct {
	Time  string `json:"time"`
	Kind  string `json:"event" enum:"store,serving,warning,waiting,recovered,acquired,renewal_failed,wanted,ending,exited,released,looked,more,history,error"`
	Name  string `json:"name,omitempty"`
	Token uint64 `json:"token,string,omitempty"`
	Text  string `json:"text" about:"for people"`
	Next  string `json:"next,omitempty" about:"of more: what --after is to be, to go on"`
}

// The kinds of events.
const (
	onStore         = "store"
	onServe         = "serving"
	onWarning       = "warning"
	onWait          = "waiting"
	onRecovered     = "recovered" // the store answers again
	onGrant         = "acquired"
	onRenewalFailed = "renewal_failed"
	onWanted        = "wanted" // others wait for what is held
	onEnding        = "ending" // of the command, or of what it has left running
	onExit          = "exited"
	onRelease       = "released"
	onLooked        = "looked" // at how many locks, for a list that leaves some out or is sorted
	onMore          = "more"   // of a list
	onHistory       = "history"
	onError         = "error"
)

// stamp is the time of a line or an object.
func stamp() string { return time.Now().Format("2006-01-02T15:04:05.000Z07:00") }

// tell reports what everybody should know. With --json it reports only errors, unless -v asks for
// more.
func (a *app) tell(kind, name string, token uint64, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !a.json {
		a.write(text)
	} else if a.verbose {
		a.encode(event{Time: stamp(), Kind: kind, Name: name, Token: token, Text: text})
	}
}

// announce tells of what everybody should know while the command goes on, with --json too.
func (a *app) announce(kind, name string, format string, args ...any) {
	if a.json {
		a.encode(event{Time: stamp(), Kind: kind, Name: name, Text: strings.TrimSpace(fmt.Sprintf(format, args...))})
	} else {
		a.tell(kind, name, 0, format, args...)
	}
}

// more tells that a list goes on.
func (a *app) more(next string) {
	text := "there may be more: go on with --after " + next
	if a.json {
		a.encode(event{Time: stamp(), Kind: onMore, Text: text, Next: next})
	} else {
		a.write(text)
	}
}

// detail tells of what only -v asks for.
func (a *app) detail(kind, name string, token uint64, format string, args ...any) {
	if a.verbose {
		a.tell(kind, name, token, format, args...)
	}
}

func (a *app) encode(v any) {
	_ = writeJSON(a.stderr, v, "") // there is nobody left to tell of an error
}

// write writes lines for people, at once. Names and notes of other users may be part of them.
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
