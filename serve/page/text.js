// Names and notes may come from anybody. They become text, and invisible characters are escaped.

import { html } from './html.js'
import { say } from './words.js'

/** Escapes characters that are invisible, as a space at an end is, or change the direction of text. */
export const seen = (text) => (text ?? '').replace(/[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]|[^\S ]|^ | $/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`)

/** Text from anybody, shown safely. */
export const Text = ({ of, ...rest }) => html`<bdi title=${seen(of)} ...${rest}>${seen(of)}</bdi>`

/** Describes a holder or waiter in a few words: its text, or its program, or the beginning of its owner. */
export function who (one) {
  const { text, user, program, pid, kind } = one.details ?? {}
  if (kind === 'reserved' && user) return text ? `${user}: ${text}` : user
  return text || (program && (pid ? `${program}[${pid}]` : program)) || user || one.note || one.owner || ''
}

export const Who = ({ of }) => who(of) ? html`<${Text} of=${who(of)} class=${of.note || of.details ? 'who' : 'who dim'} />` : html`<span class="dim">${say('noNote')}</span>`

/** Reports whether a link leads to the web. Other links are not offered. */
export const isLink = (text) => /^https?:\/\//i.test(text ?? '')
