// Sentences about what has happened to a lock.

import { html } from './html.js'
import { renews } from './lease.js'
import { LockLink } from './parts/small.js'
import { isLink, Text, who } from './text.js'
import { ago, clock, say, time } from './words.js'

/** Who it was, with the person's link and host. */
function Person (entry) {
  const { host, link } = entry.details ?? {}
  const name = who(entry) ? html`<${Text} of=${who(entry)} class="who" />` : say('somebody')
  return html`${isLink(link) ? html`<a href=${link} rel="noreferrer noopener" target="_blank">${name}</a>` : name}${host && html`<span class="how on"> ${say('onHost', html`<${Text} of=${host} />`)}</span>`}`
}

/** Sorts entries by time, newest first. They arrive in the order in which they were seen. */
export const inOrder = (entries) => [...entries].sort((a, b) => (a.age ?? a.ago_ms) - (b.age ?? b.ago_ms))

/** Returns the part of a sentence after the person: how, by whom and why. */
function how (entry) {
  const parts = []
  if (entry.kind === 'granted' && entry.waited_ms >= 1000) parts.push(say('afterWait', time(entry.waited_ms)))
  if (entry.kind === 'left' && entry.waited_ms >= 1000) parts.push(say('afterWait', time(entry.waited_ms)))
  // For an end that a look found, only the time of the look is known.
  const seen = entry.kind === 'ended'
  if (entry.silent_ms) parts.push(say(seen ? 'noRenewalSeenFor' : 'noRenewalFor', time(entry.silent_ms)))
  if (entry.held_ms && entry.kind !== 'granted') parts.push(say(seen ? 'heldAtMost' : 'heldFor', time(entry.held_ms)))
  if (seen) parts.push(say('howNotSeen'))
  if (entry.by && entry.by !== (entry.kind === 'reserved' && entry.details?.user)) parts.push(html`${say('by')} <${Text} of=${entry.by} class="who" />`)
  if (entry.reason && entry.kind !== 'reserved') parts.push(html`“<${Text} of=${entry.reason} />”`)
  return parts.flatMap((part) => [html`<span class="how"> · ${part}</span>`])
}

// join puts a space before a word, but none before a comma.
const join = (words) => !words || /^[,，]/.test(words) ? words : ` ${words}`

// A lease that nobody renewed, or meant to renew, was not lost when its time was over.
const isLoss = (entry) => entry.details ? renews(entry.details.kind) : entry.held_ms > entry.silent_ms

/** Returns the kind of an entry, as a word: an expired lease was lost, or ran out. */
export const kindOf = (entry) => entry.kind === 'expired' && !isLoss(entry) ? 'ranOut' : entry.kind

/** An entry of the history as a sentence, with the lock's name if it appears among other locks' entries. */
export const Sentence = ({ entry, named }) => html`
  ${named && html`<${LockLink} name=${entry.name} /> `}<span class="kind is-${kindOf(entry)}">${say(`kind_${kindOf(entry)}`)}</span>
  ${entry.kind === 'gap' ? null : html`${join(say(`person_${kindOf(entry)}`))} ${Person(entry)}`}${how(entry)}`

/** Adds details and notes to entries without them, from other entries of the same lease. */
export function named (entries) {
  const known = new Map()
  for (const entry of entries) if (entry.details || entry.note) known.set(entry.token + entry.handle, { details: entry.details, note: entry.note })
  return entries.map((entry) => entry.details || entry.note ? entry : { ...entry, ...known.get(entry.token + entry.handle) })
}

/** When it was, by the service's clock, and how long ago. */
export function When ({ time: at, age }) {
  const date = new Date(at ?? Date.now() - age)
  return html`<time datetime=${date.toISOString()} title=${ago(age)}>${clock(date)}</time>`
}
