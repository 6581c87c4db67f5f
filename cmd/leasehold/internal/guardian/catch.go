package guardian

import (
	"os"
	"os/signal"
)

// Catch relays signals to c, as signal.Notify does, except SIGHUP and SIGINT if they are ignored from
// the start.
func Catch(c chan<- os.Signal, signals ...os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}
