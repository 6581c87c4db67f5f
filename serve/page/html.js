// Markup as templates of Preact: html`<p>${text}</p>`. What stands in ${} becomes text, never markup.

import { h } from './vendor/preact.mjs'
import htm from './vendor/htm.mjs'

export { render } from './vendor/preact.mjs'
export { useCallback, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from './vendor/hooks.mjs'

export const html = htm.bind(h)
