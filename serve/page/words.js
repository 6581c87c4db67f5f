// What the console says, in English and in Chinese, and how it says times.

import en from './words/en.js'
import zh from './words/zh.js'

const all = { en, zh }
const KEY = 'language'

let language = (localStorage.getItem(KEY) ?? navigator.language).startsWith('zh') ? 'zh' : 'en'
document.documentElement.lang = language === 'zh' ? 'zh-CN' : 'en'

/** A word, or a sentence made of values: text, or parts of which some are markup. */
export function say (word, ...values) {
  const text = all[language][word]
  return typeof text === 'function' ? text(...values) : text ?? word
}

export function otherLanguage () {
  language = language === 'zh' ? 'en' : 'zh'
  document.documentElement.lang = language === 'zh' ? 'zh-CN' : 'en'
  localStorage.setItem(KEY, language)
}

/** A length of time. */
export function time (ms) {
  if (ms === undefined || ms === null) return '–'
  const [milli, s, min, h, d] = say('units')
  if (ms > 0 && ms < 1000) return `${Math.round(ms)} ${milli}`
  const seconds = Math.max(Math.round(ms / 1000), 0)
  if (seconds < 60) return `${seconds} ${s}`
  const pair = (great, unit, small, part) => small ? `${great} ${unit} ${small} ${part}` : `${great} ${unit}`
  if (seconds < 3600) return pair(Math.floor(seconds / 60), min, seconds % 60, s)
  if (seconds < 86400) return pair(Math.floor(seconds / 3600), h, Math.floor(seconds % 3600 / 60), min)
  return pair(Math.floor(seconds / 86400), d, Math.floor(seconds % 86400 / 3600), h)
}

/** A length of time of which a tenth of a second counts. */
export const precise = (ms) => ms >= 1000 && ms < 10_000 ? `${(ms / 1000).toFixed(1)} ${say('units')[1]}` : time(ms)

/** A length of time that grows: coarser, so that it does not flicker. */
export const ago = (ms) => ms < 1000 ? say('justNow') : say('ago', time(ms < 60_000 ? Math.floor(ms / 1000) * 1000 : ms))

/** A time of day, by this machine's clock, with the day where it is another one. */
export function clock (date, seconds = true) {
  const locale = document.documentElement.lang
  const options = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23', ...(seconds && { second: '2-digit' }) }
  if (date.toDateString() !== new Date().toDateString()) Object.assign(options, { month: 'short', day: 'numeric' })
  return new Intl.DateTimeFormat(locale, options).format(date)
}

/** The time of day in so many milliseconds. */
export const clockIn = (ms) => clock(new Date(Date.now() + ms), false)

export const number = (n) => n === undefined || n === null ? '–' : new Intl.NumberFormat(document.documentElement.lang).format(n)
