// Dialogs that ask before an action and say what will happen. Enter presses the focused button; in a
// field, it presses the dialog's own button once that is enabled.

import { act } from '../api.js'
import { html, redraws, useEffect, useLayoutEffect, useRef, useState } from '../html.js'
import { lookNow } from '../look.js'
import { say } from '../words.js'

let asked = null // options of the open dialog
let opened = 0
const [redraw, useShown] = redraws()

function show (dialog) {
  asked = dialog
  redraw()
}

/**
 * Opens a dialog: title, what (paragraphs), facts (a list), fields ({name, label, kind, value, must, equals, number, options}),
 * effects (a list, of the fields once they are filled in), yes (its button), call and body (of the fields), done (of the answer: what to say, null to close).
 */
export const openDialog = (dialog) => show({ ...dialog, id: ++opened })

export function Dialog () {
  useShown()
  return asked && html`<${Asking} key=${asked.id} ...${asked} />`
}

const valid = (field, value) => field.number ? /^[0-9]{1,9}$/.test(value.trim()) : field.equals ? field.equals.includes(value) : !field.must || value.trim() !== ''

function Asking ({ id, title, what, facts = [], fields, effects, yes, danger, call, body, done }) {
  const dialog = useRef(null)
  const [values, setValues] = useState(Object.fromEntries(fields.map((f) => [f.name, f.value ?? ''])))
  const [state, setState] = useState({ word: '', busy: false, over: null })
  useEffect(() => {
    const opener = document.activeElement
    dialog.current.showModal()
    return () => { if (opener?.isConnected) opener.focus() }
  }, [])
  // Escape may have closed it while it waited, which the page hears of only later.
  useLayoutEffect(() => { if (state.word && !dialog.current.open) dialog.current.showModal() }, [state.word])
  const waits = state.busy && !state.close // for the outcome, which nobody is to miss
  const filled = fields.every((f) => valid(f, values[f.name]))
  const allowed = !state.busy && !state.over && filled
  const submit = async (event) => {
    event.preventDefault()
    if (!allowed) return
    setState({ word: '', busy: true })
    const next = await attempt(call, body(values), done)
    lookNow()
    setState(next)
    if (next.close) setTimeout(() => dialog.current?.close(), 900)
  }
  const field = (f, i) => html`<label><span>${f.label}</span>
    ${f.kind === 'select'
      ? html`<select name=${f.name} value=${values[f.name]} onChange=${(e) => setValues({ ...values, [f.name]: e.target.value })}>
          ${f.options.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select>`
      : html`<input name=${f.name} value=${values[f.name]} required=${f.must} autofocus=${i === 0} inputmode=${f.number ? 'numeric' : undefined} autocomplete="off" spellcheck=${false}
          onInput=${(e) => setValues({ ...values, [f.name]: e.target.value })} />`}
  </label>`
  return html`<dialog ref=${dialog} aria-labelledby="dialog-title" onCancel=${(e) => { if (waits) e.preventDefault() }}
    onClose=${() => { if (dialog.current.open) return; if (waits) dialog.current.showModal(); else if (asked?.id === id) show(null) }}>
    <form onSubmit=${submit} novalidate>
      <h2 id="dialog-title">${title}</h2>
      ${what.map((text) => html`<p>${text}</p>`)}
      ${facts.length > 0 && html`<ul class="facts">${facts.map((fact) => html`<li>${fact}</li>`)}</ul>`}
      ${!state.over && fields.map(field)}
      ${effects && !state.over && html`<div aria-live="polite">${filled && html`<ul class="facts effects">${effects(values).map((effect) => html`<li>${effect}</li>`)}</ul>`}</div>`}
      <p class="answer ${state.close || state.over ? 'good' : 'bad'}" role="alert">${state.word}</p>
      ${state.over}
      <div class="buttons">
        <button type="button" class="no" disabled=${waits} onClick=${() => dialog.current.close()}>${state.over ? say('close') : say('cancel')}</button>
        ${!state.over && html`<button class="yes ${danger ? 'danger' : 'main'}" disabled=${!allowed}>${yes}</button>`}
      </div>
    </form>
  </dialog>`
}

// attempt makes the call. If it gets no answer, the action may have been done.
async function attempt (call, body, done) {
  try {
    const { word, over } = done(await act(call, body))
    return { word, over, close: !over, busy: !over }
  } catch (error) {
    const early = error.code === 'not_yet' // nothing is granted yet, to anybody
    const busy = early ? 'actNotYet' : error.holder && !error.holder.owner ? 'actKept' : 'actBusy'
    const words = { 410: call === 'reset' ? 'actRunSince' : 'actLost', 409: busy, 401: 'notAllowed', 403: 'notAllowed', 501: 'actUnsupported', 404: 'actUnsupported', 400: 'actRefused', 429: 'actLimit' }
    const word = say(words[error.status] ?? 'actUnknown')
    return { word: early || [400, 501].includes(error.status) ? `${word} ${error.message}` : word, busy: false }
  }
}
