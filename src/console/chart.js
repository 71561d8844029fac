// Line charts over time.

import { clock } from './format.js'
import { el, setText, show } from './dom.js'

const SPAN_SECONDS = 300
// A new chart is not yet five minutes wide, nor are its first samples as wide as the page.
const SPAN_SECONDS_MIN = 30
// The style sheet keeps the hint beside it.
const VALUES_WIDTH = 46
const STEPS = [1, 2, 5]
  .flatMap((digit) => Array.from({ length: 13 }, (_, power) => digit * 10 ** power))
  .sort((a, b) => a - b)
const SCHEME = matchMedia('(prefers-color-scheme: dark)')
// By color: the lengths of dashes and gaps. Lines differ by them where a reader cannot tell their colors apart.
const DASHES = {
  ready: [],
  reserved: [8, 4],
  delayed: [3, 5],
  buried: [7, 3, 2, 3],
  held: [2, 2, 2, 6],
}
const LINE_WIDTH = 2
const MARK = { width: 30, height: 10 }

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()

function svg(tag, attributes, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag)
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value)
  node.append(...children)
  return node
}

/** A piece of a line, for the legend. */
function mark(color) {
  const middle = MARK.height / 2
  const dash = DASHES[color].join(' ')
  const line = { x1: 0, y1: middle, x2: MARK.width, y2: middle, 'stroke-width': LINE_WIDTH, 'stroke-dasharray': dash }
  return svg('svg', { class: `mark ${color}`, ...MARK, 'aria-hidden': 'true' }, svg('line', line))
}

/**
 * A chart of columns of a `History`. `lines` has, for each line, the name of its column, its label, and its color (a
 * variable of the style sheet), which also selects its dashes. `format` shows a value, `axisFormat` one at the axis. The
 * legend above the chart has the latest values, or those under the pointer, as text. It leaves out a line that is `rare`
 * while all its values are 0.
 */
export class Chart {
  #plot = null
  #lines
  #values
  #items
  #when
  #area
  #hint
  #history
  #format
  #axisFormat
  #observer

  constructor({ label, history, lines, format, axisFormat }) {
    this.#history = history
    this.#lines = lines
    this.#format = format
    this.#axisFormat = axisFormat
    this.#values = lines.map(() => el('span', { class: 'value', text: '–' }))
    this.#when = el('span', { class: 'when', text: 'now' })
    const names = lines.map((line) => line.label.toLowerCase()).join(', ')
    this.#hint = el('p', { class: 'chart-hint', text: 'Collecting samples: the chart begins when the page is opened.' })
    this.#area = el('div', {
      class: 'chart-area',
      role: 'img',
      'aria-label': `Chart of the last five minutes: ${names}`,
    })
    this.#items = lines.map((line, index) =>
      el(
        'li',
        {},
        mark(line.color),
        el('span', { text: line.label }),
        this.#values[index],
      ),
    )
    const legend = el('ul', { class: 'legend' }, ...this.#items)
    this.node = el(
      'figure',
      { class: 'chart' },
      el('figcaption', {}, el('span', { class: 'chart-title', text: label }), this.#when),
      legend,
      el('div', { class: 'chart-frame' }, this.#area, this.#hint),
    )
    this.#observer = new ResizeObserver(() => this.#resize())
    this.#observer.observe(this.#area)
    this.rebuild = this.rebuild.bind(this)
    SCHEME.addEventListener('change', this.rebuild)
  }

  /** Shows the samples that the history has now. */
  update() {
    const hasLine = this.#history.times.length > 1
    this.#hint.hidden = hasLine
    for (const [index, { name, rare }] of this.#lines.entries())
      if (rare) show(this.#items[index], this.#history.column(name).some((value) => value > 0))
    if (this.#plot === null) this.#build()
    else this.#plot.setData(this.#data())
    if (!this.#isPointed()) this.#showValues(this.#history.times.length - 1)
  }

  /** Draws everything again, with the colors of the scheme. */
  rebuild() {
    this.#plot?.destroy()
    this.#plot = null
    this.#build()
  }

  /** Frees what the chart holds outside its node. */
  close() {
    SCHEME.removeEventListener('change', this.rebuild)
    this.#observer.disconnect()
    this.#plot?.destroy()
  }

  #data() {
    return [this.#history.times, ...this.#lines.map((line) => this.#history.column(line.name))]
  }

  #span() {
    const now = this.#history.times.at(-1) ?? Date.now() / 1000
    const first = this.#history.times[0] ?? now
    return [Math.max(now - SPAN_SECONDS, Math.min(first, now - SPAN_SECONDS_MIN)), now]
  }

  #isPointed() {
    return this.#plot !== null && this.#plot.cursor.idx !== null && this.#plot.cursor.left >= 0
  }

  #showValues(index) {
    for (const [line, node] of this.#values.entries()) {
      const value = this.#history.column(this.#lines[line].name)[index]
      setText(node, value === null || value === undefined ? '–' : this.#format(value))
    }
    const isLatest = index === this.#history.times.length - 1
    setText(this.#when, isLatest || index === undefined ? 'now' : clock(new Date(this.#history.times[index] * 1000)))
  }

  #size() {
    return { width: Math.max(120, this.#area.clientWidth), height: Math.max(120, this.#area.clientHeight) }
  }

  #resize() {
    const { width, height } = this.#size()
    if (this.#plot !== null && (this.#plot.width !== width || this.#plot.height !== height))
      this.#plot.setSize({ width, height })
  }

  #build() {
    if (!this.#area.isConnected) return
    const axis = {
      stroke: color('muted'),
      font: '11px system-ui, sans-serif',
      grid: { stroke: color('grid'), width: 1 },
      ticks: { show: false },
    }
    const options = {
      ...this.#size(),
      legend: { show: false },
      // At the right there is space for half of a time, whose middle may be at the end.
      padding: [8, 28, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: {
        x: { time: true, range: () => this.#span() },
        y: { range: (_, __, max) => [0, Math.max(1, (max ?? 0) * 1.08)] },
      },
      axes: [
        { ...axis, size: 26, space: 80, values: (_, times) => times.map((time) => clock(new Date(time * 1000))) },
        { ...axis, size: VALUES_WIDTH, incrs: STEPS, values: (_, values) => values.map(this.#axisFormat) },
      ],
      series: [
        {},
        ...this.#lines.map((line) => ({
          label: line.label,
          stroke: color(line.color),
          width: LINE_WIDTH,
          dash: DASHES[line.color],
          points: { show: false },
        })),
      ],
      hooks: { setCursor: [(plot) => this.#showValues(plot.cursor.idx ?? this.#history.times.length - 1)] },
    }
    this.#plot = new window.uPlot(options, this.#data(), this.#area)
  }
}
