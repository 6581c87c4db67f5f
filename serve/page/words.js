// The texts of the console, in English and in Chinese, and its formats of times.

import en from './words/en.js'
import zh from './words/zh.js'

const all = { en, zh }
const KEY = 'language'

let language = (localStorage.getItem(KEY) ?? navigator.language).startsWith('zh') ? 'zh' : 'en'
document.documentElement.lang = language === 'zh' ? 'zh-CN' : 'en'

/** Returns a text, or a sentence made from values: text, or parts of which some are markup. */
export function say (word, ...values) {
  const text = all[language][word]
  return typeof text === 'function' ? text(...values) : text ?? word
}

export function otherLanguage () {
  language = language === 'zh' ? 'en' : 'zh'
  document.documentElement.lang = language === 'zh' ? 'zh-CN' : 'en'
  localStorage.setItem(KEY, language)
}

/** Formats a duration. */
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

/** Formats a duration to a tenth of a second, if that matters. */
export const precise = (ms) => ms >= 1000 && ms < 10_000 ? `${(ms / 1000).toFixed(1)} ${say('units')[1]}` : time(ms)

/** Formats a growing duration, coarsely enough not to flicker. */
export const ago = (ms) => ms < 1000 ? say('justNow') : say('ago', time(ms < 60_000 ? Math.floor(ms / 1000) * 1000 : ms))

// Formatters by language, options and time zone. Making one is slow, and each tick formats every figure.
const formatters = new Map()

function format (Formatter, value, options) {
  const language = document.documentElement.lang
  const key = language + Formatter.name + JSON.stringify(options) + new Date().getTimezoneOffset()
  if (!formatters.has(key)) formatters.set(key, new Formatter(language, options))
  return formatters.get(key).format(value)
}

/** Formats a time of day by this machine's clock, with the day unless it is today. */
export function clock (date, seconds = true) {
  const options = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23', ...(seconds && { second: '2-digit' }) }
  if (date.toDateString() !== new Date().toDateString()) Object.assign(options, { month: 'short', day: 'numeric' })
  return format(Intl.DateTimeFormat, date, options)
}

/** Formats the time of day that comes in `ms` milliseconds. */
export const clockIn = (ms) => clock(new Date(Date.now() + ms), false)

export const number = (n) => n === undefined || n === null ? '–' : format(Intl.NumberFormat, n)
