// The address contains what is shown, so that a view can be shared: #/locks?sort=held&host=web-7

import { redraws } from './html.js'

function parse () {
  const [path, query = ''] = (location.hash.slice(1) || '/').split('?')
  const [view, ...rest] = path.split('/').slice(1)
  let name = view === 'lock' ? rest.join('/') : null
  try {
    if (name) name = decodeURIComponent(name)
  } catch { /* it is not encoded */ }
  return { view: view || 'overview', name, query: Object.fromEntries(new URLSearchParams(query)) }
}

let route = parse()
let list = '#/locks' // with the last filters
const [redraw, useChanges] = redraws()

function changed () {
  route = parse()
  if (route.view === 'locks') list = location.hash
  redraw()
}

addEventListener('hashchange', changed)

export function useRoute () {
  useChanges()
  return route
}

const fieldsOf = (query) => {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== '' && value !== undefined)).toString()
  return text && `?${text}`
}

/** Returns the list from which the lock was opened. */
export const linkToList = () => list

export const link = (view, query = {}) => `#/${view}${fieldsOf(query)}`

export const linkToLock = (name, query = {}) => `#/lock/${encodeURIComponent(name)}${fieldsOf(query)}`

/** Changes fields of the query without a new entry in the browser's history. */
export function refine (fields) {
  const path = (location.hash.slice(1) || '/').split('?')[0]
  history.replaceState(null, '', `#${path}${fieldsOf({ ...route.query, ...fields })}`)
  changed()
}

/** Changes fields with a new entry, so that the browser's Back returns. */
export function move (fields) {
  const path = (location.hash.slice(1) || '/').split('?')[0]
  location.hash = `${path}${fieldsOf({ ...route.query, ...fields })}`
}
