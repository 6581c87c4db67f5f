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

// A script is a Lua script that Redis runs atomically. The head of its file has its keys, arguments
// and reply.
type script struct {
	name string

	loaded sync.Once // programs that never use Redis do not read the files
	text   string
	sha    string
}

// The scripts, each with the file that builds its call. The scripts of note.go, once.go and why.go
// are declared there.
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

// load reads the script and its includes. It panics if a file is missing.
func (s *script) load() *script {
	s.loaded.Do(func() {
		s.text = read(s.name)
		for _, part := range []string{"history.lua", "prelude.lua", "memory.lua", "obstacle.lua"} {
			s.text = strings.Replace(s.text, "--include "+part+"\n", read(part), 1)
		}
		sum := sha1.Sum([]byte(s.text)) // Redis names scripts by SHA-1; nothing secret depends on it
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
