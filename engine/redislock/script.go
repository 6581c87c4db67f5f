package redislock

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"
	"sync"
)

//go:embed scripts/*.lua
var files embed.FS

// A script is what Redis runs in one piece. The head of its file tells keys, arguments
// and reply.
type script struct {
	name string

	loaded sync.Once // programs that never use Redis do not pay for it
	text   string
	sha    string
}

// The scripts, and where their keys and arguments are put together. Those of note.go, once.go and
// why.go stand there.
var (
	scriptTake     = &script{name: "take.lua"}     // plain.go
	scriptGive     = &script{name: "give.lua"}     // plain.go
	scriptAcquire  = &script{name: "acquire.lua"}  // claim.go
	scriptRenew    = &script{name: "renew.lua"}    // renew.go
	scriptRelease  = &script{name: "release.lua"}  // claim.go
	scriptEvict    = &script{name: "evict.lua"}    // inspect.go
	scriptBeat     = &script{name: "beat.lua"}     // crowd.go
	scriptRaise    = &script{name: "raise.lua"}    // inspect.go
	scriptLimit    = &script{name: "limit.lua"}    // inspect.go
	scriptInspect  = &script{name: "inspect.lua"}  // inspect.go
	scriptRenewAll = &script{name: "renewall.lua"} // renewall.go
)

// load reads the script with what it includes; a file that is missing stops the program.
func (s *script) load() *script {
	s.loaded.Do(func() {
		s.text = read(s.name)
		for _, part := range []string{"history.lua", "prelude.lua", "memory.lua", "obstacle.lua"} {
			s.text = strings.Replace(s.text, "--include "+part+"\n", read(part), 1)
		}
		sum := sha1.Sum([]byte(s.text)) // the name that Redis gives to a script, no secret
		s.sha = hex.EncodeToString(sum[:])
	})
	return s
}

func read(name string) string {
	b, err := files.ReadFile("scripts/" + name)
	if err != nil {
		panic(err)
	}
	return string(b)
}
