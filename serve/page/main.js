// The console. It reads the service's leases, receives events, and shows both. If the service does not
// answer, it shows states as unknown, never as free.

import { useTick } from './clock.js'
import { hear } from './hear.js'
import { html, render, useLayoutEffect, useReducer, useRef } from './html.js'
import { answers, looks } from './look.js'
import { askWho, useMe } from './me.js'
import { Dialog } from './parts/dialog.js'
import { linkToList, useRoute } from './route.js'
import { seen, Text } from './text.js'
import { Events } from './views/events.js'
import { Lock } from './views/lock.js'
import { Locks } from './views/locks.js'
import { Me, SignIn } from './views/me.js'
import { Overview } from './views/overview.js'
import { otherLanguage, say, time } from './words.js'

const views = { overview: Overview, locks: Locks, lock: Lock, events: Events, me: Me }
const tabs = ['overview', 'locks', 'events']
const refusals = ['signInNeeded', 'wrongToken']

/** Returns the freshness of the page: that of its oldest vital data. */
function freshness () {
  const vital = looks().filter((look) => look.vital)
  const problem = vital.map((look) => look.problem).find((word) => word && word !== 'connecting') ?? ''
  if (vital.length > 0 && vital.every((look) => look.fresh)) return { word: 'live', age: 0 }
  if (problem === '' && (vital.length === 0 || vital.some((look) => !look.data))) return { word: answers() ? 'live' : 'connecting', age: 0 }
  return { word: ['', 'unknown'].includes(problem) ? 'unknown' : problem, age: Math.max(...vital.map((look) => look.age)) }
}

function Status ({ word, age }) {
  const known = word === 'live' || word === 'connecting' || word === 'missing'
  return html`<p id="status" class=${known ? `is-${word}` : 'is-bad'}>
    <span role="status">${say(`status_${word}`)}</span>${word === 'unknown' && Number.isFinite(age) && html` <span>${say('statusAge', time(Math.floor(age / 1000) * 1000))}</span>`}</p>`
}

function Console () {
  useTick()
  const [, draw] = useReducer((n) => n + 1, 0)
  const route = useRoute()
  const { client, told } = useMe()
  const main = useRef(null)
  const here = useRef(null)
  const refused = refusals.includes(told)
  const View = views[route.view] ?? Overview
  const at = route.view + (route.name ?? '')
  useLayoutEffect(() => {
    if (here.current !== null && here.current !== at) {
      main.current.querySelector('h1')?.focus()
      scrollTo(0, 0)
    }
    here.current = at
    document.title = `${route.name === null ? say(route.view in views ? route.view : 'overview') : seen(route.name)} · Leasehold`
  })
  const status = refused ? { word: told, age: 0 } : freshness()
  return html`
    <a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); main.current.focus() }}>${say('skip')}</a>
    <header>
      <a class="brand" href="#/"><svg viewBox="0 0 20 20" aria-hidden="true"><path d="M6 9V6.5a4 4 0 0 1 8 0V9" /><rect x="3.5" y="9" width="13" height="8.5" rx="2" /></svg>Leasehold</a>
      <nav aria-label=${say('sections')}>${tabs.map((tab) => html`<a href=${tab === 'overview' ? '#/' : `#/${tab}`} aria-current=${route.view === tab || (tab === 'locks' && route.view === 'lock') ? 'page' : undefined}>${say(tab)}</a>`)}</nav>
      <${Status} ...${status} />
      <a id="me" href="#/me" aria-current=${route.view === 'me' ? 'page' : undefined}>${client?.client ? html`<${Text} of=${client.client} />` : say('me')}</a>
      <button id="language" type="button" lang=${say('languageCode')} onClick=${() => { otherLanguage(); draw() }}>${say('language')}</button>
    </header>
    <main id="main" ref=${main} tabindex="-1" >
      ${refused ? html`<${SignIn} problem=${told} />` : html`<${View} key=${at} name=${route.name} query=${route.query} />`}
    </main>
    <footer>${say('keys')}</footer>
    <${Dialog} />`
}

function keys (event) {
  const typing = event.target.matches?.('input, select, textarea')
  if (document.querySelector('dialog[open]') || event.ctrlKey || event.metaKey || event.altKey) return
  const search = document.getElementById('q')
  if (event.key === '/' && !typing && search) {
    event.preventDefault()
    search.focus()
  } else if (event.key === 'Escape' && !typing && location.hash.startsWith('#/lock/')) {
    location.hash = linkToList()
  } else if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
    const rows = [...document.querySelectorAll('.locks .lock-link')]
    const at = rows.indexOf(event.target)
    if (at < 0 && event.target !== search) return
    const to = rows[event.key === 'ArrowDown' ? at + 1 : at - 1] ?? (event.key === 'ArrowUp' ? search : null)
    if (to) event.preventDefault()
    to?.focus()
  }
}

addEventListener('keydown', keys)
render(html`<${Console} />`, document.getElementById('console'))
askWho()
hear()
