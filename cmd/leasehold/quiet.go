package main

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// init silences the client of Redis, which would write its errors to stderr in addition.
func init() { redis.SetLogger(quiet{}) }

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
