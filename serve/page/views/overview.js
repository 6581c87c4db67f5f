// The overview: figures with charts, the most contended names, the hosts that hold most, and the last ends.

import { ask } from '../api.js'
import { since } from '../clock.js'
import { inOrder, Sentence, When } from '../ends.js'
import { html } from '../html.js'
import { STALE, useLook } from '../look.js'
import { Spark } from '../parts/chart.js'
import { Empty, Field, LockLink, Stale } from '../parts/small.js'
import { link, refine } from '../route.js'
import { Text } from '../text.js'
import { ago, number, precise, say, time } from '../words.js'

const HOUR = 3_600_000
// The service's figures come from its own last look, which it repeats every five seconds, or less often if a look takes long.
const COUNTED = 5000
const counted = (data) => data.store === 'down' ? Infinity : data.age_ms ?? 0
// A service that falls silent is noticed as soon, however long its pause.
const limit = (data) => STALE + Math.max(COUNTED, Math.min(counted(data), data.pause_ms ?? 0))

function Figure ({ label, value, tone, href, note, children }) {
  const figure = html`<b class=${tone ? `value is-${tone}` : 'value'}>${value}</b>`
  return html`<div class="figure">
    <h2>${label}</h2>
    ${href ? html`<a href=${href} aria-label=${`${label}: ${value}`}>${figure}</a>` : figure}
    ${note && html`<p class="of">${note}</p>`}${children && html`<div class="chart">${children}</div>`}
  </div>`
}

export function Overview ({ query }) {
  const prefix = query.prefix ?? ''
  const look = useLook((signal) => ask('overview', { prefix }, signal), ['overview', prefix], { vital: true, minds: () => false, told: counted, limit, before: null }) // figures of another prefix would be taken for its own
  const { data } = look
  return html`<section class="view">
    <div class="head">
      <h1 tabindex="-1">${say('overview')}</h1>
      <${Field} label=${say('prefix')}><input id="prefix" type="search" value=${prefix} autocomplete="off" spellcheck=${false} onChange=${(e) => refine({ prefix: e.target.value })} /><//>
    </div>
    <${Stale} look=${look} />
    ${data && html`<div class=${look.fresh ? 'known' : 'known old'}>
      ${data.partial && html`<p class="note warn" id="partial">${say('partial')}</p>`}
      <${Figures} data=${data} prefix=${prefix} />
      <div class="columns">
        <${Contended} data=${data} prefix=${prefix} />
        <${Hosts} data=${data} prefix=${prefix} />
      </div>
      <${Ends} entries=${data.ends ?? []} look=${look} />
      <p class="fine">${data.begins_ms !== undefined && say('asSeen', time(data.begins_ms))}</p>
    </div>`}
  </section>`
}

function Figures ({ data, prefix }) {
  const points = data.series?.points ?? []
  const step = data.series?.step_ms ?? 60_000
  const per = say('perPoint', time(step))
  const spark = (label, lines, show, bars) => {
    // Figures per minute are shown for whole minutes: the current one would look like a drop.
    const shown = points.filter((point) => bars ? point.ago_ms <= HOUR : point.ago_ms > 0 || !lines[0].whole)
    return shown.length > 1 && html`<${Spark} points=${shown} step=${step} lines=${lines} bars=${bars} label=${say('chartLabel', label, time(shown.at(-1).ago_ms))} show=${show} />`
  }
  return html`<div class="figures">
    <${Figure} label=${say('figHeld')} value=${number(data.held)} note=${data.partial && say('ownOnly')} href=${link('locks', { prefix, state: 'held' })}>
      ${spark(say('figHeld'), [{ field: 'held' }], (p) => number(p.held))}<//>
    <${Figure} label=${say('figWaiting')} value=${number(data.waiting)} note=${data.partial && say('ownOnly')} href=${link('locks', { prefix, state: 'waited', sort: 'waiting', dir: 'desc' })}>
      ${spark(say('figWaiting'), [{ field: 'waiting', className: 'wait' }], (p) => number(p.waiting))}<//>
    <${Figure} label=${say('figLongest')} value=${data.longest_wait_ms ? time(data.longest_wait_ms) : '–'}
      note=${data.longest_wait_name ? html`<${LockLink} name=${data.longest_wait_name} />` : say(data.waiting > 0 || data.partial ? 'unknownState' : 'nobodyWaits')} />
    <${Figure} label=${say('figRisk')} value=${number(data.at_risk)} tone=${data.at_risk > 0 ? 'late' : ''} href=${data.at_risk > 0 ? link('locks', { prefix, state: 'late' }) : undefined} note=${say('figRiskWhat')} />
    <${Figure} label=${say('figLost')} value=${number(data.lost_hour)} tone=${data.lost_hour > 0 ? 'bad' : ''} href=${link('events', { prefix, kind: 'expired' })} note=${say('lastHour')}>
      ${spark(say('figLost'), [{ field: 'lost', className: 'bad' }], (p) => `${number(p.lost)} ${per}`, true)}<//>
    <${Figure} label=${say('figEvicted')} value=${number(data.evicted_hour)} tone=${data.evicted_hour > 0 ? 'bad' : ''} href=${link('events', { prefix, kind: 'evicted' })} note=${say('lastHour')} />
    <${Figure} label=${say('figGrants')} value=${number(data.grants_minute)}>
      ${spark(say('figGrants'), [{ field: 'grants', whole: true }], (p) => `${number(p.grants)} ${per}`)}<//>
    <${Figure} label=${say('figWaits')} value=${html`${precise(data.wait_p50_ms)} <i>/ ${precise(data.wait_p99_ms)}</i>`}>
      ${spark(say('figWaits'), [{ field: 'wait_p99_ms', className: 'wait' }, { field: 'wait_p50_ms' }], (p) => `${precise(p.wait_p50_ms)} / ${precise(p.wait_p99_ms)}`)}<//>
  </div>`
}

function Contended ({ data }) {
  const all = data.contended ?? []
  const most = Math.max(1, ...all.map((one) => one.waiting))
  return html`<section class="card" aria-labelledby="contended">
    <h2 id="contended">${say('contended')}</h2>
    ${all.length === 0
      ? html`<${Empty}>${say(data.partial ? 'unknownState' : 'nobodyWaits')}<//>`
      : html`<table class="plain"><thead><tr><th scope="col">${say('name')}</th><th scope="col" class="n">${say('waiting')}</th><th scope="col" class="n">${say('longest')}</th></tr></thead>
        <tbody>${all.map((one) => html`<tr key=${one.name}><td><${LockLink} name=${one.name} /></td><td class="n meter" style=${{ '--share': `${100 * one.waiting / most}%` }}>${number(one.waiting)}</td><td class="n">${time(one.longest_wait_ms || null)}</td></tr>`)}</tbody></table>`}
  </section>`
}

function Hosts ({ data, prefix }) {
  const all = data.hosts ?? []
  const most = Math.max(1, ...all.map((one) => one.held))
  return html`<section class="card" aria-labelledby="hosts">
    <h2 id="hosts">${say('hosts')}</h2>
    ${all.length === 0
      ? html`<${Empty}>${say(data.partial ? 'unknownState' : 'noHosts')}<//>`
      : html`<table class="plain"><thead><tr><th scope="col">${say('host')}</th><th scope="col" class="n">${say('heldCount')}</th><th scope="col" class="n">${say('waiting')}</th></tr></thead>
        <tbody>${all.map((one) => html`<tr key=${one.host}><td><a href=${link('locks', { prefix, host: one.host })}><${Text} of=${one.host} /></a></td><td class="n meter" style=${{ '--share': `${100 * one.held / most}%` }}>${number(one.held)}</td><td class="n">${number(one.waiting)}</td></tr>`)}</tbody></table>`}
  </section>`
}

function Ends ({ entries, look }) {
  const age = look.at ? since(look.at) : 0
  return html`<section class="card" aria-labelledby="ends">
    <h2 id="ends">${say('lastEnds')}</h2>
    ${entries.length === 0
      ? html`<${Empty}>${say('noEnds')}<//>`
      : html`<ol class="told">${inOrder(entries).map((entry) => html`<li key=${entry.seq}><${When} time=${entry.time} age=${entry.ago_ms + age} /> <span class="said"><${Sentence} entry=${entry} named /></span> <small class="dim">${ago(entry.ago_ms + age)}</small></li>`)}</ol>`}
  </section>`
}
