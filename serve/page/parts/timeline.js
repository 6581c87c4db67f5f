// A lock's timeline: its holders as bars one after another, the number of waiters as an area, and where
// leases were lost or evicted. The table beneath it says the same in words.

import { kindOf } from '../ends.js'
import { html } from '../html.js'
import { seen, who } from '../text.js'
import { clock, say, time } from '../words.js'
import { useWidth } from './chart.js'

const LANE = 26
const LANES = 8
const WAITS = 46
const AXIS = 20
const STUB = 0.03 // of the range
const MINUTE = 60_000
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 240, 360, 720, 1440].map((minutes) => minutes * MINUTE)

const BEGINS = new Set(['granted', 'reserved'])
export const ENDS = new Set(['released', 'expired', 'evicted', 'ended', 'reset'])

const same = (a, b) => a.token === b.token && (!a.handle || !b.handle || a.handle === b.handle)

/** Returns the holders' times within the last `range` milliseconds. from and to are ages, the older one first. */
export function barsOf (entries, state, range) {
  const open = []
  const bars = []
  // If its beginning is unknown, a bar is a stub, and so is a wait.
  const begun = (held, to) => held ? { from: to + held } : { from: to + range * STUB, unbegun: true }
  for (const entry of [...entries].reverse()) {
    if (BEGINS.has(entry.kind)) {
      open.push({ ...entry, from: entry.ago_ms })
    } else if (ENDS.has(entry.kind)) {
      const i = open.findIndex((bar) => same(bar, entry))
      const [bar] = i < 0 ? [{ ...entry, ...begun(entry.held_ms, entry.ago_ms) }] : open.splice(i, 1)
      bars.push({ ...bar, to: entry.ago_ms, end: entry })
    }
  }
  for (const holder of state?.holders ?? []) {
    const i = open.findIndex((bar) => same(bar, holder))
    const [bar] = i < 0 ? [begun(holder.held_ms, 0)] : open.splice(i, 1)
    bars.push({ ...bar, ...holder, from: holder.held_ms ?? bar.from, to: 0, held: true })
  }
  for (const bar of open) bars.push({ ...bar, to: bar.from, lostSight: true }) // its end was not seen
  return bars.filter((bar) => bar.to <= range).map((bar) => ({ ...bar, length: bar.from - bar.to, from: Math.min(bar.from, range) })).sort((a, b) => b.from - a.from)
}

/** Returns the number of waiters over time, as steps {ago, count}, the oldest first. */
export function waitsOf (entries, state, range) {
  const began = new Map()
  const steps = []
  const wait = (from, to) => { if (from > to) steps.push({ ago: Math.min(from, range), by: 1 }, { ago: to, by: -1 }) }
  for (const entry of [...entries].reverse()) {
    const key = entry.handle ?? entry.owner
    if (entry.kind === 'waiting') began.set(key, entry.ago_ms)
    else if (began.has(key) || (BEGINS.has(entry.kind) && entry.waited_ms)) {
      wait(began.get(key) ?? entry.ago_ms + entry.waited_ms, entry.ago_ms)
      began.delete(key)
    }
  }
  for (const waiter of state?.waiters ?? []) wait(waiter.waited_ms ?? began.get(waiter.handle) ?? range * STUB, 0)
  let count = 0
  return steps.filter((step) => step.ago <= range).sort((a, b) => b.ago - a.ago).map((step) => ({ ago: step.ago, count: count += step.by }))
}

// lanesOf puts bars into lines. An end and the grant that follows may be told in the other order, so
// bars that overlap by less than the slack follow each other.
function lanesOf (bars, slack) {
  const free = [] // the age at which each lane is free again
  for (const bar of bars) {
    let lane = free.findIndex((to) => to >= bar.from - slack)
    if (lane < 0) lane = free.length < LANES ? free.length : LANES - 1
    free[lane] = Math.min(bar.to, free[lane] ?? Infinity)
    bar.lane = lane
  }
  return Math.max(free.length, 1)
}

function ticks (range, width) {
  const step = STEPS.find((s) => range / s <= Math.max(width / 90, 2)) ?? STEPS.at(-1)
  const now = Date.now()
  const zone = new Date(now).getTimezoneOffset() * MINUTE
  const all = []
  for (let at = Math.floor((now - zone) / step) * step + zone; at > now - range; at -= step) all.push({ ago: now - at, text: clock(new Date(at), false) })
  return all
}

const mark = { expired: 'M0 0l6 10h-12z', ended: 'M0 1l4 4l-4 4l-4 -4z', evicted: 'M-5 0l10 10M5 0l-10 10' }

export function Timeline ({ entries, state, range, begins, gaps, cut }) {
  const [ref, width] = useWidth(900)
  const bars = barsOf(entries, state, range)
  const waits = waitsOf(entries, state, range)
  const lanes = lanesOf(bars, range / width)
  const top = 8
  const floor = top + lanes * LANE + 8 + WAITS
  const x = (ago) => width * (1 - Math.min(ago, range) / range)
  const most = Math.max(0, ...waits.map((step) => step.count))
  const y = (count) => floor - count * (WAITS - 14) / Math.max(most, 1)
  let area = `M0 ${floor}`
  for (const step of waits) area += `H${x(step.ago).toFixed(1)}V${y(step.count).toFixed(1)}`
  area += `H${width}V${floor}Z`
  const ends = (kinds) => bars.filter((bar) => kinds.includes(endOf(bar))).length
  const left = cut !== undefined && cut < range ? cut : undefined // older entries are left out
  const unseen = [...(begins !== undefined && begins < range ? [{ from: range, to: begins }] : []), ...gaps]
  return html`<figure class="timeline">
    <div ref=${ref}>
      <svg width=${width} height=${floor + AXIS} role="img" aria-label=${say('timelineLabel', time(range), bars.length, ends(['expired']), ends(['evicted']), most)}>
        <defs><pattern id="unseen" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line class="hatch" y2="8" /></pattern></defs>
        ${ticks(range, width).map((tick) => html`<g class="tick"><line x1=${x(tick.ago)} x2=${x(tick.ago)} y1="0" y2=${floor} />
          <text x=${x(tick.ago)} y=${floor + 15} text-anchor=${x(tick.ago) < 30 ? 'start' : x(tick.ago) > width - 30 ? 'end' : 'middle'}>${tick.text}</text></g>`)}
        ${unseen.map((gap) => html`<g><title>${say('notSeen')}</title>
          <rect class="unseen" x=${x(gap.from)} y="0" width=${Math.max(x(gap.to) - x(gap.from), 2)} height=${floor} fill="url(#unseen)" />
          ${x(gap.to) - x(gap.from) > 120 && html`<text class="caption" x=${x(gap.from) + 8} y="18">${say('notSeen')}</text>`}</g>`)}
        ${left !== undefined && html`<g class="left-out"><title>${say('leftOut')}</title><line x1=${x(left)} x2=${x(left)} y1="0" y2=${floor} />
          ${x(left) > 90 && html`<text class="caption" x=${x(left) - 6} y="34" text-anchor="end">${say('leftOut')}</text>`}</g>`}
        ${bars.map((bar) => html`<${Bar} bar=${bar} x=${x} top=${top} />`)}
        ${bars.map((bar) => html`<${End} bar=${bar} x=${x} top=${top} />`)}
        <path class="waits" d=${area} />
        <line class="floor" x1="0" x2=${width} y1=${floor} y2=${floor} />
        ${most > 0 && html`<text class="caption" x="4" y=${floor - WAITS + 10}>${say('waitingMost', most)}</text>`}
      </svg>
    </div>
    <figcaption>
      <span class="key held">${say('keyHeld')}</span><span class="key past">${say('keyPast')}</span>
      <span class="key waits">${say('keyWaits')}</span><span><b class="bad">▲</b> ${say('keyLost')}</span><span><b class="bad">✕</b> ${say('keyEvicted')}</span><span><b>◆</b> ${say('keyEnded')}</span>
    </figcaption>
  </figure>`
}

const endOf = (bar) => bar.end && kindOf({ ...bar, ...bar.end })

const widthOf = (bar, x) => Math.max(x(bar.to) - x(bar.from), 2)

/** How a bar ended, above the bar that follows. */
function End ({ bar, x, top }) {
  const ended = endOf(bar)
  return mark[ended] && html`<path class="end is-${ended}" transform=${`translate(${x(bar.from) + widthOf(bar, x)} ${top + bar.lane * LANE + 5})`} d=${mark[ended]} />`
}

function Bar ({ bar, x, top }) {
  const left = x(bar.from)
  const wide = widthOf(bar, x)
  const y = top + bar.lane * LANE
  const name = seen(who(bar)) || say('noNote')
  const end = bar.held ? say('holdsNow') : bar.lostSight ? say('endNotSeen') : say(`kind_${endOf(bar)}`)
  const kind = bar.held ? bar.owner ? 'held' : 'kept' : 'past'
  const room = bar.unbegun ? 0 : Math.floor((wide - 12) / 7.2)
  return html`<g class=${`span is-${kind}${bar.unbegun ? ' unbegun' : ''}`}>
    <title>${`${name}: ${bar.unbegun ? say('beginNotSeen') : time(bar.length)}, ${end}`}</title>
    <rect x=${left} y=${y} width=${wide} height=${LANE - 6} rx="3" />
    ${room > 3 && html`<text x=${left + 6} y=${y + 14}>${name.length > room ? `${name.slice(0, room - 1)}…` : name}</text>`}
  </g>`
}
