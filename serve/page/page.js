// The page: it asks the service what is held, hears of changes, and shows both. What the service
// does not answer is shown as unknown, never as free. Names and notes are anybody's: they
// become text, never markup, and what would not be seen of them is escaped.

import { otherLanguage, say, time, translate } from './words.js'

const $ = (id) => document.getElementById(id)
const now = () => performance.now()

// How often the service is asked what is held, in milliseconds: seldom if its answers take
// long. And for how long an answer may be overdue before nothing is known any more.
const LOOK = 2000
const LOOK_SOON = 150
const SHARE = 3
const OVERDUE = 4000
const TIMEOUT = 15_000

// How many locks are asked for at first, and how many at once at most.
const FIRST = 50
const PAGE = 1000

// How much the page remembers.
const ENDS = 50
const HISTORY = 50
const NAMES = 2000
const RANKED = 8

let locks = new Map() // name → state, as the service told at `told`
let wanted = FIRST // how many of them
let more = false // there are others
let told = -Infinity
let toldOf = null // the name of a lock that was asked for by itself, and whose state is known
let damaged = ''
let features = {}
let problem = 'connecting' // a word, or '' while all is well
const leases = new Map() // name and handle → what was seen of its renewals
const history = new Map() // name → events, the last first
const ends = []
let shown = [] // the names that the list shows, in order
let bearer = sessionStorage.getItem('bearer') ?? ''

// --- asking

async function ask (path, options = {}) {
  const headers = { Accept: 'application/json', ...options.headers }
  if (bearer) headers.Authorization = `Bearer ${bearer}`
  return fetch(path, { ...options, headers, cache: 'no-store', redirect: 'error' })
}

// look asks. One at a time: an answer must not come after one that is newer.
let looking = false
let again = false // somebody wants to know more, meanwhile

async function look () {
  if (looking) {
    again = true
    return
  }
  looking = true
  const began = now()
  try {
    const { list, status } = await askForList($('prefix').value, wanted)
    if (list) take(list, await askFor(chosen()), began)
    problem = list ? '' : { 401: 'signInNeeded', 403: 'notAllowed' }[status] ?? 'unknown'
  } catch {
    problem = 'unknown'
  }
  $('sign-in').hidden = problem !== 'signInNeeded'
  pause = Math.max(LOOK, SHARE * (now() - began))
  looking = false
  lookIn(again ? LOOK_SOON : pause)
  again = false
  draw()
}

// askForList is the first locks with a prefix, page by page, or the status of an answer that is none. A page
// may be empty although there are more: it asks on for a while.
async function askForList (prefix, count) {
  const signal = AbortSignal.timeout(TIMEOUT)
  const list = { locks: [], damaged: [], next: '' }
  const began = now()
  do {
    const query = new URLSearchParams({ prefix, limit: Math.min(count - list.locks.length, PAGE) })
    if (list.next) query.set('after', list.next)
    const response = await ask(`v1/locks?${query}`, { signal })
    if (!response.ok) return { status: response.status }
    const page = await response.json()
    list.locks.push(...page.locks)
    if (page.damaged) list.damaged.push(page.damaged)
    list.next = page.next ?? ''
  } while (list.next && list.locks.length < count && now() - began < TIMEOUT / 2)
  return { list }
}

// askFor is the state of the lock whose page is open, or null where the service does not tell it: what
// is not in the list may be free, or beyond the prefix, or damaged, or nothing that one may view.
async function askFor (name) {
  if (name === null) return null
  const response = await ask(`v1/lock?${new URLSearchParams({ name })}`, { signal: AbortSignal.timeout(TIMEOUT) })
  if (!response.ok) return null
  const state = await response.json()
  return state.name === name && !state.damaged ? state : null
}

let timer
let due = Infinity
let pause = LOOK // until the next look

function lookIn (ms) {
  clearTimeout(timer)
  due = now() + ms
  timer = setTimeout(look, ms)
}

function lookSoon () { if (due > now() + LOOK_SOON && due < Infinity) lookIn(LOOK_SOON) }

// take notes an answer, and that for one lock; both were true when they came at the latest, and
// their lengths count from began.
function take (answer, one, began) {
  told = now()
  damaged = answer.damaged.join('; ')
  more = answer.next !== ''
  locks = new Map(answer.locks.map((state) => [state.name, state]))
  toldOf = one?.name ?? null
  if (one && one.holders.length + one.waiters.length > 0) locks.set(one.name, one)
  else locks.delete(toldOf)
  const alive = new Set()
  for (const state of locks.values()) {
    for (const holder of state.holders) alive.add(see(state.name, holder, began))
  }
  for (const key of leases.keys()) if (!alive.has(key)) leases.delete(key)
}

// see notes how far the deadline of a lease is away: one that moved was renewed. The longest that
// was seen stands for its TTL, which no engine tells.
function see (name, holder, began) {
  const key = JSON.stringify([name, holder.handle ?? ''])
  const ends = began + (holder.left_ms ?? 0)
  const lease = leases.get(key) ?? { longest: 0, ends, renewed: told }
  if (ends > lease.ends + 300) lease.renewed = told
  lease.ends = ends
  lease.longest = Math.max(lease.longest, holder.left_ms ?? 0)
  leases.set(key, lease)
  return key
}

// timeOf is what is known of a holder's time now.
function timeOf (name, holder) {
  const lease = leases.get(JSON.stringify([name, holder.handle ?? '']))
  if (!lease || !holder.left_ms) return null
  const left = lease.ends - now()
  // Leases are renewed every third of their TTL: with half of it gone, one was missed.
  const late = left < lease.longest / 2
  return { left, share: Math.max(Math.min(left / lease.longest, 1), 0), late, silent: lease.longest - left }
}

// --- hearing

async function hear () {
  for (let pause = 500; ; pause = Math.min(pause * 2, 10_000)) {
    try {
      const response = await ask('v1/events', { headers: { Accept: 'text/event-stream' } })
      if (response.ok) {
        pause = 500
        await read(response.body)
      }
    } catch { /* the next look tells whether the service answers */ }
    lookSoon()
    await new Promise((resolve) => setTimeout(resolve, pause))
  }
}

async function read (body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader()
  for (let text = ''; ;) {
    const { value, done } = await reader.read()
    if (done) return
    const parts = (text + value).split('\n\n')
    text = parts.pop()
    for (const part of parts) heard(part)
  }
}

function heard (part) {
  const kind = part.match(/^event: (.*)$/m)?.[1]
  const data = part.match(/^data: (.*)$/m)?.[1]
  if (!kind || !data) return
  lookSoon()
  if (!['granted', 'released', 'evicted', 'ended'].includes(kind)) return
  const e = { kind, at: now(), ...JSON.parse(data) }
  const past = history.get(e.name) ?? []
  history.delete(e.name) // so that the last one heard of is the last in the map
  history.set(e.name, [e, ...past].slice(0, HISTORY))
  if (history.size > NAMES) history.delete(history.keys().next().value)
  if (kind !== 'granted') ends.unshift(e)
  ends.length = Math.min(ends.length, ENDS)
}

// --- showing

// seen is text as it can be read: what is invisible or turns the direction is escaped.
function seen (text) {
  return (text ?? '').replace(/[\p{C}\p{Zl}\p{Zp}]|[^\S ]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`)
}

function make (tag, className, text) {
  const e = document.createElement(tag)
  if (className) e.className = className
  if (text !== undefined) e.textContent = text
  return e
}

function anybodys (text, className) {
  const e = make('bdi', className, seen(text))
  e.title = e.textContent
  return e
}

const linkTo = (name) => `#/lock/${encodeURIComponent(name)}`
const fresh = () => problem === '' && now() - told < pause + OVERDUE

// When a pointer went down: what it is on stays for as long as a click takes, so that it is clicked.
const CLICK = 1000
let pressed = -Infinity

function draw () {
  if (now() - pressed < CLICK) return
  const unknown = !fresh()
  document.body.classList.toggle('unknown', unknown)
  $('status').textContent = status(unknown)
  const name = chosen()
  $('overview').hidden = name !== null
  $('lock').hidden = name === null
  if (name === null) drawOverview()
  else drawLock(name, unknown)
}

function status (unknown) {
  if (unknown && problem && problem !== 'unknown') return say(problem)
  if (unknown && told === -Infinity) return say('unknown', '…')
  if (unknown) return say('unknown', time(now() - told))
  return damaged ? say('damaged', seen(damaged)) : say('live')
}

function chosen () {
  if (!location.hash.startsWith('#/lock/')) return null
  try {
    return decodeURIComponent(location.hash.slice('#/lock/'.length))
  } catch {
    return null
  }
}

const orders = {
  name: () => 0,
  waiters: (a, b) => b.waiters.length - a.waiters.length,
  left: (a, b) => leastOf(a) - leastOf(b)
}

const leastOf = (state) => Math.min(Infinity, ...state.holders.map((h) => h.left_ms ?? Infinity))
const byName = (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0)

function drawOverview () {
  const wanted = $('search').value.toLowerCase()
  const prefix = $('prefix').value
  const matches = (s) => s.name.startsWith(prefix) && (!wanted || [s.name, ...s.holders.map((h) => h.note ?? '')].some((t) => t.toLowerCase().includes(wanted)))
  const order = orders[$('order').value]
  shown = [...locks.values()].filter(matches).sort((a, b) => order(a, b) || byName(a, b)).map((s) => s.name)
  $('count').textContent = say(more ? 'countMore' : 'count', shown.length, locks.size)
  $('none').hidden = locks.size > 0 || more || damaged !== '' || !fresh()
  $('more').hidden = !more
  $('rows').style.height = `${shown.length * rowHeight()}px`
  drawRows()
  drawList($('contended'), [...locks.values()].filter((s) => s.waiters.length > 0).sort(orders.waiters).slice(0, RANKED), ranked)
  drawList($('ends'), ends.slice(0, 15), (e) => sentence(e, true))
}

function rowHeight () { return parseFloat(getComputedStyle(document.documentElement).fontSize) * parseFloat(getComputedStyle(document.documentElement).getPropertyValue('--row')) }

// drawRows draws what can be seen of the list, whatever its length.
function drawRows () {
  const height = rowHeight()
  const { scrollTop, clientHeight } = $('locks')
  const room = clientHeight || innerHeight
  const first = Math.max(Math.floor(scrollTop / height) - 5, 0)
  const last = Math.min(Math.ceil((scrollTop + room) / height) + 5, shown.length)
  const rows = new Map([...$('rows').children].map((row) => [row.dataset.name, row]))
  const wanted = new Set(shown.slice(first, last))
  for (const [name, row] of rows) if (!wanted.has(name)) row.remove()
  for (let i = first; i < last; i++) {
    let row = rows.get(shown[i])
    if (!row) {
      row = make('a', 'row')
      row.setAttribute('role', 'listitem')
      row.dataset.name = shown[i]
      row.href = linkTo(shown[i])
      $('rows').append(row)
    }
    row.style.top = `${i * height}px`
    row.dataset.place = i
    row.setAttribute('aria-setsize', shown.length)
    row.setAttribute('aria-posinset', i + 1)
    drawRow(row, locks.get(shown[i]))
  }
}

function drawRow (row, state) {
  const holder = state.holders[0]
  const t = holder && timeOf(state.name, holder)
  const late = fresh() && t?.late
  const cells = [
    anybodys(state.name, 'name'),
    holder ? anybodys(holder.note || holder.owner || say('kept'), holder.note ? '' : 'dim') : make('span', 'dim', say(fresh() ? 'free' : 'unknownState')),
    holder ? deadline(t, late) : make('span'),
    make('span', state.waiters.length ? '' : 'dim', state.waiters.length ? say('waits', state.waiters.length) : '')
  ]
  row.classList.toggle('late', Boolean(late))
  row.replaceChildren(...cells)
}

// deadline is the time to it as a bar and as text.
function deadline (t, late) {
  const e = make('span', late ? 'late' : '')
  if (!t) return e
  const bar = make('span', 'bar')
  const part = make('i')
  part.style.width = `${100 * t.share}%`
  bar.append(part)
  const text = !fresh() ? say('unknownState') : t.left <= 0 ? say('over') : late ? say('stopped', time(t.silent)) : say('left', time(t.left))
  e.append(bar, make('small', '', text))
  return e
}

// drawList draws a list anew, and leaves the focus on the link that had it.
function drawList (list, items, draw) {
  const focused = list.contains(document.activeElement) && document.activeElement.getAttribute('href')
  list.replaceChildren(...items.map((item) => {
    const li = make('li')
    li.append(...draw(item))
    return li
  }))
  if (focused) [...list.querySelectorAll('a')].find((a) => a.getAttribute('href') === focused)?.focus()
}

function ranked (state) {
  const longest = Math.max(...state.waiters.map((w) => w.waited_ms ?? 0))
  return [nameLink(state.name), ` ${say('waits', state.waiters.length)}, ${say('waitsFor', time(longest))}`]
}

function nameLink (name) {
  const a = make('a')
  a.href = linkTo(name)
  a.append(anybodys(name))
  return a
}

// sentence is an event as a sentence.
function sentence (e, named) {
  const parts = named ? [nameLink(e.name), ' '] : []
  parts.push(make('b', '', say(e.kind)), ' ', anybodys(e.note || e.owner, 'dim'))
  if (e.reason) parts.push(' “', anybodys(e.reason), '”')
  parts.push(` · ${e.token && e.token !== '0' ? say('token', e.token) + ' · ' : ''}${say('ago', time(now() - e.at))}`)
  return parts
}

function drawLock (name, stale) {
  const unknown = stale || toldOf !== name
  const state = locks.get(name) ?? { name, holders: [], waiters: [] }
  $('lock-name').replaceChildren(anybodys(name))
  const word = unknown ? 'unknownState' : state.holders.length ? 'held' : 'free'
  $('lock-state').textContent = say(word)
  $('lock-state').className = unknown ? 'bad' : ''
  drawHolders(state)
  drawList($('waiters'), state.waiters, (w) => [
    anybodys(w.note || w.owner), ` · ${say(w.mode ?? 'exclusive')} · ${say('waitsFor', time((w.waited_ms ?? 0) + (unknown ? 0 : now() - told)))}`])
  drawList($('history'), history.get(name) ?? [], (e) => sentence(e, false))
}

// drawHolders keeps the elements of holders that stay, so that a button keeps its focus.
function drawHolders (state) {
  const list = $('holders')
  const before = new Map([...list.children].map((li) => [li.dataset.handle, li]))
  const items = state.holders.map((h) => drawHolder(before.get(h.handle ?? '') ?? holderItem(h), state.name, h))
  if (items.length !== list.children.length || items.some((item, i) => item !== list.children[i])) list.replaceChildren(...items)
}

function holderItem (holder) {
  const li = make('li')
  li.dataset.handle = holder.handle ?? ''
  li.append(make('div', 'who'), make('div', 'time'))
  return li
}

function evictButton (name, holder) {
  const button = make('button')
  button.type = 'button'
  button.addEventListener('click', () => openEvict(name, holder))
  return button
}

function drawHolder (li, name, holder) {
  const facts = [say(holder.mode ?? 'exclusive')]
  if (holder.token) facts.push(say('token', holder.token))
  if (holder.held_ms) facts.push(say('since', time(holder.held_ms + (fresh() ? now() - told : 0))))
  li.querySelector('.who').replaceChildren(anybodys(holder.note || say('noNote'), 'name'), ' ', anybodys(holder.owner, 'dim'), ` · ${facts.join(' · ')}`)
  const t = timeOf(name, holder)
  li.querySelector('.time').replaceChildren(deadline(t, fresh() && t?.late))
  if (features.evicts && holder.handle && !li.querySelector('button')) li.append(evictButton(name, holder))
  li.querySelector('button')?.replaceChildren(say('evict'))
  return li
}

// --- evicting

let victim

function openEvict (name, holder) {
  victim = { name, holder }
  $('evict-name').textContent = seen(name)
  $('evict-holder').textContent = seen(holder.note || holder.owner)
  for (const id of ['evict-reason', 'evict-typed']) $(id).value = ''
  $('evict-answer').textContent = ''
  mayEvict()
  $('evict').showModal()
  $('evict-reason').focus()
}

function mayEvict () {
  const typed = $('evict-typed').value
  $('evict-yes').disabled = !victim || !$('evict-reason').value.trim() || (typed !== victim.name && typed !== seen(victim.name))
}

async function evict () {
  $('evict-yes').disabled = true
  const body = JSON.stringify({ name: victim.name, owner: victim.holder.handle, reason: $('evict-reason').value.trim() })
  let word = 'evictUnknown'
  try {
    const response = await ask('v1/evict', { method: 'POST', body, headers: { 'Content-Type': 'application/json' }, signal: AbortSignal.timeout(2 * TIMEOUT) })
    word = { 200: 'evictDone', 410: 'evictLost', 401: 'notAllowed', 403: 'notAllowed' }[response.status] ?? word
  } catch { /* it may have been served */ }
  $('evict-answer').textContent = say(word)
  $('evict-answer').className = word === 'evictDone' ? '' : 'bad'
  lookSoon()
  if (word === 'evictDone') setTimeout(() => $('evict').close(), 800)
}

// --- beginning

function keys (e) {
  const typing = e.target.matches?.('input, select')
  if (e.key === '/' && !typing && !$('overview').hidden) {
    e.preventDefault()
    $('search').focus()
  } else if (e.key === 'Escape' && !typing && !$('evict').open && !$('lock').hidden) {
    location.hash = '#/'
  } else if ((e.key === 'ArrowDown' || e.key === 'ArrowUp') && e.target.classList?.contains('row')) {
    e.preventDefault()
    focusRow(Number(e.target.dataset.place) + (e.key === 'ArrowDown' ? 1 : -1))
  } else if (e.key === 'ArrowDown' && e.target === $('search')) {
    e.preventDefault()
    focusRow(0)
  }
}

function focusRow (place) {
  if (place < 0 || place >= shown.length) return
  const list = $('locks')
  const height = rowHeight()
  if (place * height < list.scrollTop) list.scrollTop = place * height
  if ((place + 1) * height > list.scrollTop + list.clientHeight) list.scrollTop = (place + 1) * height - list.clientHeight
  drawRows()
  $('rows').querySelector(`[data-place="${place}"]`)?.focus()
}

async function begin () {
  translate()
  draw()
  $('language').addEventListener('click', () => { otherLanguage(); draw() })
  for (const id of ['search', 'order']) $(id).addEventListener('input', draw)
  $('prefix').addEventListener('input', () => { wanted = FIRST; draw(); lookIn(LOOK_SOON) })
  $('more-button').addEventListener('click', () => { wanted *= 2; look() })
  $('locks').addEventListener('scroll', drawRows, { passive: true })
  $('evict-reason').addEventListener('input', mayEvict)
  $('evict-typed').addEventListener('input', mayEvict)
  $('evict-yes').addEventListener('click', evict)
  $('evict').addEventListener('close', () => { victim = undefined })
  $('sign-in').addEventListener('submit', (e) => {
    e.preventDefault()
    bearer = $('bearer').value
    sessionStorage.setItem('bearer', bearer)
    location.reload()
  })
  addEventListener('hashchange', () => { draw(); look(); scrollTo(0, 0) })
  addEventListener('keydown', keys)
  addEventListener('pointerdown', () => { pressed = now() })
  for (const ends of ['pointerup', 'pointercancel', 'blur']) addEventListener(ends, () => { pressed = -Infinity })
  setInterval(draw, 500)
  look()
  hear()
  for (;;) {
    try {
      const response = await ask('v1/features', { signal: AbortSignal.timeout(TIMEOUT) })
      if (response.ok) {
        features = await response.json()
        draw()
        return
      }
    } catch { /* look tells */ }
    await new Promise((resolve) => setTimeout(resolve, 2000))
  }
}

begin()
