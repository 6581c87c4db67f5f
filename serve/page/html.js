// Markup as templates of Preact: html`<p>${text}</p>`. What stands in ${} becomes text, never markup.

import { h } from './vendor/preact.mjs'
import { useEffect, useReducer } from './vendor/hooks.mjs'
import htm from './vendor/htm.mjs'

export { render } from './vendor/preact.mjs'
export { useCallback, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from './vendor/hooks.mjs'

export const html = htm.bind(h)

/** Returns a function that redraws components, and the hook of these components. */
export function redraws () {
  const drawn = new Set()
  const redraw = () => { for (const draw of drawn) draw() }
  const useRedraw = () => {
    const [, draw] = useReducer((n) => n + 1, 0)
    useEffect(() => {
      drawn.add(draw)
      return () => drawn.delete(draw)
    }, [])
  }
  return [redraw, useRedraw]
}
