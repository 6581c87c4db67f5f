// The stream of events. An event makes looks come sooner, and the view of events shows it.

import { listen } from './api.js'
import { mark, since } from './clock.js'
import { looks } from './look.js'
import { redraws } from './html.js'

const KEPT = 500
const FIRST_PAUSE = 500
const LONGEST_PAUSE = 5000
// The service sends something every five seconds.
const SILENT = 12_000

/** The events received, newest first; since when all were received, or null; whether the stream is open. */
export const heard = { events: [], from: null, open: false, partial: false, count: 0 }

const kinds = new Set(['granted', 'released', 'evicted', 'expired', 'ended', 'waiting', 'left', 'reserved', 'reset'])
const [tell, useEvents] = redraws()

/** Redraws a component when an event arrives. */
export function useHeard () {
  useEvents()
  return heard
}

let abort = new AbortController()
let last = mark()

// Over HTTP/1.1 all tabs of a browser share six connections to a service. A hidden tab closes its
// stream, because seven open streams would leave no connection for calls.
const LEAVES = 5000
let away = false // the page was left, and the browser may keep it
let leaving
let seenAgain = () => {}

addEventListener('pagehide', () => { away = true; abort.abort() })
addEventListener('pageshow', () => { away = false; seenAgain() })
document.addEventListener('visibilitychange', () => {
  clearTimeout(leaving)
  if (document.hidden) leaving = setTimeout(() => abort.abort(), LEAVES)
  else seenAgain()
})

function keep (event) {
  heard.events.unshift({ ...event, key: ++heard.count, at: mark() })
  if (heard.events.length <= KEPT) return
  heard.events.length = KEPT
  heard.from = heard.events.at(-1).at
}

/** Starts again, for example when somebody signs in. */
export function hearAgain () {
  Object.assign(heard, { events: [], from: null })
  abort.abort()
}

export async function hear () {
  setInterval(() => { if (since(last) > SILENT) abort.abort() }, 1000)
  for (let pause = FIRST_PAUSE; ; pause = Math.min(pause * 2, LONGEST_PAUSE)) {
    while (away || document.hidden) await new Promise((resolve) => { seenAgain = resolve })
    abort = new AbortController()
    last = mark()
    try {
      const body = await listen(abort.signal)
      pause = FIRST_PAUSE
      await read(body)
    } catch { /* looks tell whether the service answers */ }
    if (heard.open) keep({ kind: 'gap', from: last })
    heard.open = false
    tell()
    await new Promise((resolve) => setTimeout(resolve, pause))
  }
}

async function read (body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader()
  last = mark()
  for (let text = ''; ;) {
    const { value, done } = await reader.read()
    if (done) return
    last = mark()
    const parts = (text + value).split('\n\n')
    text = parts.pop()
    parts.forEach(take)
  }
}

function take (part) {
  const kind = part.match(/^event: (.*)$/m)?.[1]
  const data = part.match(/^data: (.*)$/m)?.[1]
  if (!kind || !data) return
  const event = JSON.parse(data)
  if (kind === 'open') {
    const gap = heard.events.find((event) => event.kind === 'gap')
    if (gap) gap.to ??= mark()
    Object.assign(heard, { open: true, partial: event.partial === true, from: heard.from ?? mark() })
  }
  if (kinds.has(kind)) keep({ ...event, kind })
  for (const look of looks()) if (look.minds?.(event) ?? true) look.soon()
  tell()
}
