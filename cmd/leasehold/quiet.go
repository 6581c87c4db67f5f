package main

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// What goes wrong comes as an error; the client of Redis would also write it to stderr.
func init() { redis.SetLogger(quiet{}) }

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
