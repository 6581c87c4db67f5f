package main

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// The client of Redis would also write its errors to stderr.
func init() { redis.SetLogger(quiet{}) }

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
