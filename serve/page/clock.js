// Time as the console measures it, and the ticks by which what is shown grows old.

import { useEffect, useReducer } from './html.js'

/** A moment, to measure from. */
export const mark = () => ({ running: performance.now(), wall: Date.now() })

/**
 * How long ago a moment was, in milliseconds. The browser's running clock may stop while a machine
 * sleeps and its wall clock may be set back, so the one that says more counts.
 */
export const since = (at) => Math.max(performance.now() - at.running, Date.now() - at.wall, 0)

const TICK = 500
const ticking = new Set()

/** Draws all anew, so that all of it shows the same moment. */
export const tick = () => { for (const draw of ticking) draw() }

setInterval(tick, TICK)
// A page that was asleep or out of sight draws what it knows by now before anything else.
for (const woken of ['visibilitychange', 'resume']) document.addEventListener(woken, tick)
for (const woken of ['pageshow', 'focus']) window.addEventListener(woken, tick)

/** Draws a component anew with every tick. */
export function useTick () {
  const [, draw] = useReducer((n) => n + 1, 0)
  useEffect(() => {
    ticking.add(draw)
    return () => ticking.delete(draw)
  }, [])
}
