package guardian

import (
	"os"
	"os/signal"
)

// Catch relays signals that are not ignored to c, as signal.Notify does.
func Catch(c chan<- os.Signal, signals ...os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}
