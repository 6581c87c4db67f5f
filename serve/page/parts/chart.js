// Small charts: a line over the last minutes. The pointer shows the figures at its position.

import { html, useLayoutEffect, useRef, useState } from '../html.js'
import { ago, time } from '../words.js'

/** Returns the width of an element, and follows its changes. */
export function useWidth (first) {
  const ref = useRef(null)
  const [width, setWidth] = useState(first)
  useLayoutEffect(() => {
    const measure = () => { if (ref.current?.clientWidth) setWidth(ref.current.clientWidth) }
    const watch = new ResizeObserver(measure)
    watch.observe(ref.current)
    measure()
    return () => watch.disconnect()
  }, [])
  return [ref, width]
}

const HEIGHT = 44

// runsOf returns the runs of points with known figures.
function runsOf (points, field) {
  const runs = [[]]
  points.forEach((point, i) => {
    if (point[field] !== undefined) runs.at(-1).push(i)
    else if (runs.at(-1).length > 0) runs.push([])
  })
  return runs.filter((run) => run.length > 0)
}

/**
 * Draws lines of points, newest first. lines are {field, className}; the area under the first one is filled.
 * With bars, each point is a bar for what happened in its time.
 */
export function Spark ({ points, lines, bars = false, label, show }) {
  const [ref, width] = useWidth(220)
  const [at, setAt] = useState(-1)
  const count = points.length
  const most = Math.max(1, ...points.flatMap((p) => lines.map((line) => p[line.field] ?? 0)))
  const span = Math.max(count - 1, 1)
  const x = (i) => width - 3 - i * (width - 6) / span
  const y = (v) => HEIGHT - 3 - v * (HEIGHT - 8) / most
  const over = (event) => {
    const box = event.currentTarget.getBoundingClientRect()
    setAt(Math.min(Math.max(Math.round((width - 3 - (event.clientX - box.left)) * span / (width - 6)), 0), count - 1))
  }
  const runs = ({ field }) => runsOf(points, field).map((run) => ({
    path: run.map((i, n) => `${n ? 'L' : 'M'}${x(i).toFixed(1)} ${y(points[i][field]).toFixed(1)}`).join(''), from: run[0], to: run.at(-1)
  }))
  const wide = Math.min(Math.max((width - 6) / span - 1, 1.5), 8)
  return html`<div class="spark" ref=${ref}>
    <svg width=${width} height=${HEIGHT} role="img" aria-label=${label} onPointerMove=${over} onPointerLeave=${() => setAt(-1)}>
      <line class="base" x1="0" x2=${width} y1=${HEIGHT - 2.5} y2=${HEIGHT - 2.5} />
      ${count > 1 && bars && lines.map(({ field, className }) => points.map((p, i) => p[field] > 0 &&
        html`<rect class=${className} x=${x(i) - wide / 2} y=${y(p[field])} width=${wide} height=${HEIGHT - 3 - y(p[field])} />`))}
      ${count > 1 && !bars && lines.map((line, i) => runs(line).map((run) => html`
        ${i === 0 && html`<path class="area ${line.className ?? ''}" d=${`${run.path}L${x(run.to)} ${HEIGHT - 3}L${x(run.from)} ${HEIGHT - 3}Z`} />`}
        <path class="line ${line.className ?? ''}" d=${run.path} />`))}
      ${at >= 0 && count > 0 && html`<line class="cursor" x1=${x(at)} x2=${x(at)} y1="0" y2=${HEIGHT} />`}
    </svg>
    <small class="tip" aria-hidden="true">${at >= 0 && count > 0 ? `${show(points[at])} · ${ago(points[at].ago_ms)}` : time(points.at(-1)?.ago_ms)}</small>
  </div>`
}
