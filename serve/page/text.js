// Names and notes are anybody's: they become text, and what would not be seen of them is escaped.

import { html } from './html.js'
import { say } from './words.js'

/** Text as it can be read: what is invisible or turns the direction is escaped. */
export const seen = (text) => (text ?? '').replace(/[\p{C}\p{Zl}\p{Zp}]|[^\S ]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`)

/** Text of anybody. */
export const Text = ({ of, ...rest }) => html`<bdi title=${seen(of)} ...${rest}>${seen(of)}</bdi>`

/** Who a holder or waiter is, in a few words: its text, else its program, else its owner's beginning. */
export function who (one) {
  const { text, user, program, pid, kind } = one.details ?? {}
  if (kind === 'reserved' && user) return text ? `${user}: ${text}` : user
  return text || (program && (pid ? `${program}[${pid}]` : program)) || user || one.note || one.owner || ''
}

export const Who = ({ of }) => who(of) ? html`<${Text} of=${who(of)} class=${of.note || of.details ? 'who' : 'who dim'} />` : html`<span class="dim">${say('noNote')}</span>`

/** A link of anybody is followed only where it leads to the web. */
export const isLink = (text) => /^https?:\/\//i.test(text ?? '')
