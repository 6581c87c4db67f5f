// Time as the console measures it, and the ticks that redraw ages.

import { redraws } from './html.js'

/** Returns the current moment, to measure from. */
export const mark = () => ({ running: performance.now(), wall: Date.now() })

/**
 * Returns how long ago a moment was, in milliseconds. The browser's running clock may stop while the machine
 * sleeps, and its wall clock may be set back, so the greater of the two counts.
 */
export const since = (at) => Math.max(performance.now() - at.running, Date.now() - at.wall, 0)

const TICK = 500

/** A tick redraws all components that use its hook at once, so that all parts show the same moment. */
export const [tick, useTick] = redraws()

setInterval(tick, TICK)
// A page that was asleep or hidden first redraws what it knows.
for (const woken of ['visibilitychange', 'resume']) document.addEventListener(woken, tick)
for (const woken of ['pageshow', 'focus']) window.addEventListener(woken, tick)
