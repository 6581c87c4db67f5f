package leasehold

import (
	"context"
	"log/slog"
)

// LogTrace returns a Trace that logs events to logger. A lost lease is an error. A failure, an
// eviction or an unknown outcome is a warning. Leases that are granted, released or refused, and
// waits that are given up, are information. Everything else is for debugging. Records have the
// context of the Trace.
func LogTrace(logger *slog.Logger) Trace {
	return func(ctx context.Context, e Event) {
		if level := e.level(); logger.Enabled(ctx, level) {
			logger.LogAttrs(ctx, level, "lock "+e.Kind.String()+" "+e.Step.String(), e.attrs()...)
		}
	}
}

// level is how much attention an event wants.
func (e Event) level() slog.Level {
	switch {
	case e.Step == StepLost:
		return slog.LevelError
	case e.Step == StepFailed, e.Step == StepEvicted, e.Step == StepUnknown:
		return slog.LevelWarn
	case e.Kind == KindRenewal, !e.Step.Ends(), e.Step == StepNested:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// attrs are those of an event that are set.
func (e Event) attrs() []slog.Attr {
	all := make([]slog.Attr, 0, 8)
	all = append(all, slog.String("name", e.Name), slog.Uint64("id", e.ID), slog.String("engine", e.Engine), slog.String("mode", e.Mode.String()))
	if e.Token != 0 {
		all = append(all, slog.Uint64("token", e.Token))
	}
	if e.Step.Ends() {
		all = append(all, slog.Duration("took", e.Took))
	}
	if e.Kind == KindRenewal && e.Step.Ends() {
		all = append(all, slog.Duration("left", e.Left))
	}
	if e.Err != nil {
		all = append(all, slog.String("error", e.Err.Error()))
	}
	return all
}
