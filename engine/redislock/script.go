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

var (
	scriptTake     = &script{name: "take.lua"}
	scriptGive     = &script{name: "give.lua"}
	scriptAcquire  = &script{name: "acquire.lua"}
	scriptRenew    = &script{name: "renew.lua"}
	scriptRelease  = &script{name: "release.lua"}
	scriptEvict    = &script{name: "evict.lua"}
	scriptRaise    = &script{name: "raise.lua"}
	scriptInspect  = &script{name: "inspect.lua"}
	scriptRenewAll = &script{name: "renewall.lua"}
)

// load reads the script with what it includes; a file that is missing stops the program.
func (s *script) load() *script {
	s.loaded.Do(func() {
		s.text = read(s.name)
		for _, part := range []string{"history.lua", "prelude.lua", "memory.lua"} {
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
