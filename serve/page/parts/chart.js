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

// runsOf returns the runs of points with known figures. There is no point for a time that nobody saw.
function runsOf (points, field, step) {
  const runs = []
  let last = -Infinity
  for (const point of points) {
    if (point[field] === undefined) continue
    if (point.ago_ms - last < 1.5 * step) runs.at(-1).push(point)
    else runs.push([point])
    last = point.ago_ms
  }
  return runs
}

/**
 * Draws lines of points, newest first, up to now. step is the time of a point. lines are {field, className}; the area under the first one is filled.
 * With bars, each point is a bar for what happened in its time.
 */
export function Spark ({ points, step, lines, bars = false, label, show }) {
  const [ref, width] = useWidth(220)
  const [at, setAt] = useState(-1)
  const here = points[at]
  const most = Math.max(1, ...points.flatMap((p) => lines.map((line) => p[line.field] ?? 0)))
  const begins = Math.max(points.at(-1).ago_ms, step)
  const x = (point) => width - 3 - point.ago_ms * (width - 6) / begins
  const y = (v) => HEIGHT - 3 - v * (HEIGHT - 8) / most
  const over = (event) => {
    const box = event.currentTarget.getBoundingClientRect()
    const away = points.map((point) => Math.abs(x(point) - (event.clientX - box.left)))
    setAt(away.indexOf(Math.min(...away)))
  }
  const runs = ({ field }) => runsOf(points, field, step).map((run) => ({
    path: run.map((point, n) => `${n ? 'L' : 'M'}${x(point).toFixed(1)} ${y(point[field]).toFixed(1)}`).join('') + (run.length > 1 ? '' : 'h2'), from: run[0], to: run.at(-1)
  }))
  const wide = Math.min(Math.max((width - 6) * step / begins - 1, 1.5), 8)
  return html`<div class="spark" ref=${ref}>
    <svg width=${width} height=${HEIGHT} role="img" aria-label=${label} onPointerMove=${over} onPointerLeave=${() => setAt(-1)}>
      <line class="base" x1="0" x2=${width} y1=${HEIGHT - 2.5} y2=${HEIGHT - 2.5} />
      ${bars && lines.map(({ field, className }) => points.map((p) => p[field] > 0 &&
        html`<rect class=${className} x=${x(p) - wide / 2} y=${y(p[field])} width=${wide} height=${HEIGHT - 3 - y(p[field])} />`))}
      ${!bars && lines.map((line, i) => runs(line).map((run) => html`
        ${i === 0 && html`<path class="area ${line.className ?? ''}" d=${`${run.path}L${x(run.to)} ${HEIGHT - 3}L${x(run.from)} ${HEIGHT - 3}Z`} />`}
        <path class="line ${line.className ?? ''}" d=${run.path} />`))}
      ${here && html`<line class="cursor" x1=${x(here)} x2=${x(here)} y1="0" y2=${HEIGHT} />`}
    </svg>
    <small class="tip" aria-hidden="true">${here ? `${show(here)} · ${ago(here.ago_ms)}` : time(points.at(-1).ago_ms)}</small>
  </div>`
}
