// The actions on a lock. A dialog first says what will happen, and asks.

import { html } from './html.js'
import { firstOf, isRenewed, leaseOf } from './lease.js'
import { STALE } from './look.js'
import { can, may, me } from './me.js'
import { openDialog } from './parts/dialog.js'
import { Copy } from './parts/small.js'
import { seen, Text, Who, who } from './text.js'
import { effectOf } from './why.js'
import { ago, clock, clockIn, say, time } from './words.js'

const HOUR = 3_600_000
const RESERVATIONS = [1, 4, 8, 24, 72, 168].map((hours) => hours * HOUR)

// The owners of this tab's own reservations, by name and token. Anyone who knows an owner may release its lease.
const KEY = 'reservations'
const kept = () => JSON.parse(sessionStorage.getItem(KEY) ?? '{}')
const idOf = (name, token) => JSON.stringify([name, token])

const reasonField = () => ({ name: 'reason', label: say('reason'), must: true })
const nameField = (name) => ({ name: 'typed', label: say('typeName'), equals: [name, seen(name)] })

export const mayEvict = (name) => can.evict() && may('evict', name)
export const mayRemove = (name) => can.remove() && may('evict', name)
export const mayLimit = (name) => can.limit() && may('evict', name)
export const mayReserve = (name) => can.reserve() && may('lock', name)

const asOf = (look) => say('factsAsOf', clock(new Date(Date.now() - look.age)))

/** Says whether a holder is alive, judging by its renewals. */
function sign (holder, look) {
  const { details, renewed_ms: renewed, unrenewed_ms: unseen } = holder
  if (details?.kind === 'reserved') return say('factReserved')
  if (!look.fresh) return say('factUnknown')
  if (!isRenewed(holder) && (details || renewed !== undefined)) return say('factNever')
  if (renewed === undefined) return unseen > STALE ? say('factUnseen', time(unseen), time(holder.left_ms)) : say('factUnknown')
  if (renewed > holder.ttl_ms / 2) return say('factSilent', time(renewed), time(holder.left_ms))
  return say('factAlive', ago(renewed))
}

/** Lists what speaks for and against an eviction, as of the last look. */
function safety (state, holder, look) {
  const facts = [asOf(look), sign(holder, look)]
  facts.push(say(me.features.fencing ? 'factFenced' : 'factUnfenced'))
  return facts.concat(nextIn(state))
}

const nextIn = (state) => state.waiters[0] ? [html`${say('factNext')} <${Text} of=${who(state.waiters[0])} />`] : []

/** Why a reservation would be refused now. */
function inTheWay (state, look) {
  const holder = state && firstOf(state)
  if (!holder || !look.fresh) return []
  return [asOf(look), holder.owner ? html`<${Text} of=${who(holder)} class="who" /> ${say('factHolds')}` : say('factDone')]
}

export const evict = (state, holder, look) => openDialog({
  title: say('evictTitle'),
  what: [html`<${Text} of=${who(holder)} class="who" /> · <${Text} of=${state.name} />`, say('evictWhat')],
  facts: safety(state, holder, look),
  fields: [reasonField(), nameField(state.name)],
  yes: say('evict'),
  danger: true,
  call: 'evict',
  body: ({ reason }) => ({ name: state.name, owner: holder.handle, reason: reason.trim() }),
  done: () => ({ word: say('evictDone') })
})

export const remove = (state, waiter) => openDialog({
  title: say('removeTitle'),
  what: [html`<${Text} of=${who(waiter)} class="who" /> · <${Text} of=${state.name} />`, say('removeWhat')],
  fields: [reasonField()],
  yes: say('remove'),
  danger: true,
  call: 'remove',
  body: ({ reason }) => ({ name: state.name, handle: waiter.handle, reason: reason.trim() }),
  done: () => ({ word: say('removeDone') })
})

export const reset = (state, look, last = state.holders.at(-1)) => openDialog({
  title: say('resetTitle'),
  what: [html`<${Text} of=${state.name} class="who" />`, say('resetWhat')],
  facts: [asOf(look), html`<${Who} of=${last} /> · ${leaseOf(state.name, last, look).text}`],
  fields: [],
  yes: say('resetYes'),
  danger: true,
  call: 'reset',
  body: () => ({ name: state.name, token: last.token }), // another run may finish meanwhile
  done: () => ({ word: say('resetDone') })
})

export const setLimit = (state, look) => openDialog({
  title: say('limitTitle'),
  what: [html`<${Text} of=${state.name} class="who" />`, say('limitWhat')],
  fields: [{ name: 'limit', label: say('limitField'), value: state.limit ? String(state.limit) : '', number: true }],
  effects: ({ limit }) => [asOf(look), ...effectOf(look.data, Number(limit))],
  yes: say('limitYes'),
  call: 'limit',
  body: ({ limit }) => ({ name: state.name, limit: Number(limit) }),
  done: () => ({ word: say('limitDone') })
})

/** Reserves a name. state is the lock's, if known. Without a name, it asks for one. */
export function reserve (name, state, look) {
  const hours = RESERVATIONS.map((ms) => [String(ms), time(ms)])
  openDialog({
    title: say(name ? 'reserveTitle' : 'reserveNameTitle'),
    what: [...(name ? [html`<${Text} of=${name} class="who" />`] : []), say('reserveWhat')],
    facts: inTheWay(state, look),
    fields: [
      ...(name ? [] : [{ name: 'name', label: say('lockName'), must: true }]), reasonField(),
      { name: 'length', label: say('forLength'), kind: 'select', value: String(8 * HOUR), options: hours }
    ],
    yes: say('reserveYes'),
    call: 'reserve',
    body: (values) => ({ name: name ?? values.name, reason: values.reason.trim(), for_ms: Number(values.length) }),
    done: (grant) => {
      sessionStorage.setItem(KEY, JSON.stringify({ ...kept(), [idOf(grant.name, grant.token)]: grant.owner }))
      return { word: say('reserveDone', clockIn(grant.left_ms)), over: html`<p>${say('ownerOnce')}</p><p class="owner"><code>${grant.owner}</code> <${Copy} text=${grant.owner} what=${say('owner')} /></p>` }
    }
  })
}

/** Forgets the owners, for example when somebody signs out. */
export const forget = () => sessionStorage.removeItem(KEY)

/** Reports whether this tab made a reservation, and so may release it. */
export const isOwn = (name, holder) => idOf(name, holder.token) in kept()

export const release = ({ name, waiters }, holder, look) => openDialog({
  title: say('releaseTitle'),
  what: [html`<${Text} of=${name} class="who" />`, ...(waiters.length > 0 ? [say('releaseWhat')] : [])],
  facts: [asOf(look), ...(waiters.length > 0 ? nextIn({ waiters }) : [say('releaseFree')])],
  fields: [],
  yes: say('release'),
  call: 'release',
  body: () => ({ name, owner: kept()[idOf(name, holder.token)] }),
  done: () => {
    const { [idOf(name, holder.token)]: _, ...rest } = kept()
    sessionStorage.setItem(KEY, JSON.stringify(rest))
    return { word: say('releaseDone') }
  }
})
