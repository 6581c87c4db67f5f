package leasehold

import (
	"context"
	"log/slog"
)

// LogTrace returns a Trace that logs events to logger, with the context of the Trace. A lost
// lease is logged as an error. Failures, evictions and unknown outcomes are warnings. Leases
// that are granted, released or refused, and waits that are given up, are information. All other
// events are for debugging.
func LogTrace(logger *slog.Logger) Trace {
	return func(ctx context.Context, e Event) {
		if level := e.level(); logger.Enabled(ctx, level) {
			logger.LogAttrs(ctx, level, "lock "+e.Kind.String()+" "+e.Step.String(), e.attrs()...)
		}
	}
}

// level returns the log level of an event.
func (e Event) level() slog.Level {
	switch {
	case e.Kind == KindKeep:
		return slog.LevelDebug
	case e.Step == StepLost:
		return slog.LevelError
	case e.Step == StepFailed, e.Step == StepEvicted, e.Step == StepUnknown:
		return slog.LevelWarn
	case e.Kind == KindRenewal, !e.Step.Ends(), e.Step == StepNested:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// attrs returns the event's attributes that are set.
func (e Event) attrs() []slog.Attr {
	all := make([]slog.Attr, 0, 10)
	all = append(all, slog.String("name", e.Name), slog.Uint64("id", e.ID), slog.String("engine", e.Engine), slog.String("mode", e.Mode.String()))
	if e.Weight > 1 {
		all = append(all, slog.Int("weight", e.Weight))
	}
	if e.Limit > 0 {
		all = append(all, slog.Int("limit", e.Limit))
	}
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
