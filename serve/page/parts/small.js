// Small parts of all views.

import { html, useLayoutEffect, useRef, useState } from '../html.js'
import { leaseOf, stateOf } from '../lease.js'
import { linkToLock, refine } from '../route.js'
import { seen, Text } from '../text.js'
import { ago, number, say } from '../words.js'

/** A link to a lock's own view. */
export const LockLink = ({ name, ...rest }) => html`<a class="lock-link" href=${linkToLock(name)} ...${rest}><${Text} of=${name} /></a>`

/** The state of a lock, as a word with a shape and a colour. */
export function State ({ state, look }) {
  const word = stateOf(state, look)
  return html`<span class="badge is-${word}" title=${word === 'keeps' ? say('keepsWhat') : undefined}>${say(`is_${word}`)}</span>`
}

/** A lease's time as a bar and a sentence. If the TTL is unknown, the bar is empty, because its length would claim a share. */
export function LeaseBar ({ name, holder, look }) {
  const { tone, share, text } = leaseOf(name, holder, look)
  return html`<div class="lease is-${tone}">
    ${holder.owner && html`<div class=${share === null ? 'bar open' : 'bar'} aria-hidden="true"><i style=${{ width: `${100 * (share ?? 0)}%` }}></i></div>`}
    <small>${text}</small>
  </div>`
}

/** A button that copies a text. */
export function Copy ({ text, what }) {
  const [done, setDone] = useState(false)
  const copy = async () => {
    setDone(await copied(text))
    setTimeout(() => setDone(false), 1500)
  }
  return html`<button type="button" class="copy" onClick=${copy} aria-label=${say('copy', what)} title=${say('copy', what)}>
    ${done
      ? html`<span aria-hidden="true">✓</span>`
      : html`<svg viewBox="0 0 16 16" aria-hidden="true"><path d="M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z" /></svg>`}
    <span class="hidden" role="status">${done ? say('copied') : ''}</span>
  </button>`
}

// Browsers offer the clipboard only to pages from this machine or over https.
async function copied (text) {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    const area = document.createElement('textarea')
    area.value = text
    area.className = 'hidden'
    const dialog = document.querySelector('dialog[open]') // outside it, nothing gets the focus
    ;(dialog ?? document.body).append(area)
    area.select()
    const done = document.execCommand('copy')
    area.remove()
    return done
  }
}

/** Says why a part shows old data or none. */
export function Stale ({ look }) {
  if (look.fresh) return null
  if (look.problem === 'missing') return html`<p class="note">${say('missing')}</p>`
  if (look.problem === 'connecting' && look.before) return null
  if (look.problem === 'connecting' && !look.data) return html`<p class="note loading">${say('loading')}</p>`
  if (look.data) return html`<p class="note warn stale">${Number.isFinite(look.age) ? say('staleSince', ago(look.age), ['notAllowed', 'limited'].includes(look.problem) && say(look.problem)) : say('storeDown')}</p>`
  return html`<p class="note warn">${say(look.problem === 'unknown' || look.problem === '' ? 'noAnswer' : look.problem)}
    ${look.error && html` <span class="dim">${say('inBrackets', seen(look.error))}</span>`}</p>`
}

export const Empty = ({ children }) => html`<div class="empty">${children}</div>`

/** Filters, folded behind a button where space is short. `count` of them are in use. */
export function Filters ({ label, count, search, children }) {
  const [open, setOpen] = useState(false)
  return html`<form class=${open ? 'tools open' : 'tools'} role="search" onSubmit=${(e) => e.preventDefault()}>
    ${search}
    <button type="button" class="fold" aria-expanded=${open} aria-controls="fields" onClick=${() => setOpen(!open)}>${label}${count > 0 && html` <b class="badge">${number(count)}</b>`}</button>
    <div id="fields">${children}</div>
  </form>`
}

/** A field with its label. */
export const Field = ({ label, children, ...rest }) => html`<label ...${rest}><span>${label}</span>${children}</label>`

const TYPED = 250

/** A filter whose text enters the address once typing pauses. */
export function Filter ({ id, label, value, type = 'search' }) {
  const [typed, setTyped] = useState(value)
  const timer = useRef(0)
  const sent = useRef(value) // into the address, from which it comes back while somebody types on
  useLayoutEffect(() => {
    if (value === sent.current) return
    clearTimeout(timer.current)
    sent.current = value
    setTyped(value)
  }, [value])
  const type_ = (event) => {
    const text = event.target.value
    setTyped(text)
    clearTimeout(timer.current)
    timer.current = setTimeout(() => {
      sent.current = text
      refine({ [id]: text, after: '', p: '' })
    }, TYPED)
  }
  return html`<${Field} label=${label}><input id=${id} type=${type} value=${typed} autocomplete="off" spellcheck=${false} onInput=${type_} /><//>`
}
