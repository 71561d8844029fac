// All tubes: sorted, filtered, and read from the server by the rows that are visible.

import { read, segment } from './api.js'
import * as format from './format.js'
import { el, field, setAttribute, setText, show } from './dom.js'
import { announce } from './shell.js'
import { Table } from './table.js'

const COLUMNS = [
  { key: 'name', label: 'Tube', sort: 'name' },
  { key: 'ready', label: 'Ready', sort: 'ready', isNumber: true },
  { key: 'reserved', label: 'Reserved', sort: 'reserved', isNumber: true },
  { key: 'delayed', label: 'Delayed', sort: 'delayed', isNumber: true },
  { key: 'buried', label: 'Buried', sort: 'buried', isNumber: true },
  { key: 'held', label: 'Held', sort: 'held', isNumber: true, isWide: true },
  { key: 'waiting', label: 'Waiting', sort: 'waiting', isNumber: true, isWide: true },
  { key: 'puts', label: 'Puts', sort: 'puts', isNumber: true, isWide: true },
  { key: 'oldest', label: 'Oldest ready', sort: 'oldest', isNumber: true, isWide: true },
]

const TYPING_MS = 120
// That of a tube name. The server refuses a longer one.
const FILTER_CHARS_MAX = 200
const POSITIONS_MAX = 50

// By entry of the browser's history, so that the way back leads to the same rows and a link to the first ones.
const positions = new Map()

/** Returns the key of the current entry of the browser's history, which is kept with that entry. */
function entryKey() {
  if (history.state?.tubes === undefined) history.replaceState({ tubes: Date.now() }, '')
  return history.state.tubes
}

function create(key) {
  if (key !== 'name') return el('span')
  const link = el('a', { class: 'tube-name' })
  const paused = el('span', { class: 'badge', text: 'paused' })
  // A narrow window shows the value that the table is sorted by here, if it has no column for it.
  const sorted = el('span', { class: 'sorted only-narrow' })
  return { node: el('span', { class: 'name-cell' }, link, paused, sorted), link, paused, sorted }
}

function fill(cells, tube, sort) {
  const { link, paused, sorted } = cells.name
  setText(link, tube?.name ?? '…')
  setAttribute(link, 'href', tube === null ? null : `#/tubes/${encodeURIComponent(tube.name)}`)
  setAttribute(link, 'title', tube !== null && tube.name.length > 30 ? tube.name : null)
  show(paused, tube !== null && tube.paused_seconds > 0)
  setText(sorted, '')
  for (const { key, label, isNumber, isWide } of COLUMNS) {
    if (!isNumber) continue
    const value = tube === null ? null : key === 'oldest' ? tube.oldest_ready_seconds : tube[key]
    const text = value === null ? '–' : key === 'oldest' ? format.seconds(value) : format.count(value)
    setText(cells[key], tube === null ? '' : text)
    cells[key].className = value === 0 || value === null ? 'zero' : `is-${key}`
    if (isWide && key === sort && tube !== null) setText(sorted, `${label}: ${text}`)
  }
}

class Tubes {
  #app
  #filter
  #sortBox
  #orderButton
  #typing = 0
  #summary = el('p', { class: 'hint' })
  // The number of tubes changes all the time. Only that of a new filter is announced.
  #announced = ''
  #empty = el('p', { class: 'empty' })
  #table
  #entry = entryKey()

  constructor(app, query) {
    this.#app = app
    this.sort = COLUMNS.some((column) => column.sort === query.get('sort')) ? query.get('sort') : 'name'
    this.order = query.get('order') === 'desc' ? 'desc' : 'asc'
    this.#filter = field('Filter by name', {
      type: 'search',
      value: (query.get('filter') ?? '').slice(0, FILTER_CHARS_MAX),
      autocomplete: 'off',
      spellcheck: 'false',
      maxlength: FILTER_CHARS_MAX,
      'aria-keyshortcuts': '/',
      placeholder: 'Part of a name',
      title: 'Press / to filter',
    })
    this.#filter.input.addEventListener('input', () => this.#typed())
    this.#sortBox = field('Sort by', { tag: 'select' })
    this.#sortBox.node.classList.add('only-narrow')
    for (const column of COLUMNS) this.#sortBox.input.append(el('option', { value: column.sort, text: column.label }))
    this.#sortBox.input.addEventListener('change', () => this.#sortBy(this.#sortBox.input.value))
    this.#orderButton = el('button', {
      type: 'button',
      class: 'only-narrow',
      on: { click: () => this.#sortBy(this.sort) },
    })
    this.#table = new Table({
      label: 'Tubes',
      columns: COLUMNS,
      create,
      fill: (cells, tube) => fill(cells, tube, this.sort),
      moved: () => app.poller.soon(),
      sorted: (sort) => this.#sortBy(sort),
    })
    this.#table.startAt(positions.get(this.#entry) ?? null)
    this.#showSort()
    show(this.#empty, false)
    this.title = 'Tubes'
    this.node = el(
      'div',
      { class: 'tubes-page' },
      el('div', { class: 'head' }, el('h1', { text: 'Tubes' }), this.#summary),
      el('div', { class: 'tools' }, this.#filter.node, this.#sortBox.node, this.#orderButton),
      this.#table.node,
      this.#empty,
    )
  }

  focusFilter() {
    this.#filter.input.focus()
    this.#filter.input.select()
  }

  async refresh(signal) {
    const { offset, limit } = this.#table.window()
    const filter = this.#filter.input.value
    const query = new URLSearchParams({ sort: this.sort, order: this.order, offset, limit })
    if (filter !== '') query.set('filter', filter)
    const page = await read(`tubes?${query}`, signal)
    this.#table.setRows(page.matched, page.offset, page.tubes)
    setText(this.#empty, filter === '' ? 'You may inspect no tube that exists.' : 'No tube name contains this text.')
    show(this.#empty, page.matched === 0)
    show(this.#table.node, page.matched > 0)
    const all = format.counted(page.total, 'tube')
    setText(this.#summary, filter === '' ? all : `${format.count(page.matched)} of ${all}`)
    if (filter !== this.#announced) announce(this.#summary.textContent)
    this.#announced = filter
  }

  close() {
    clearTimeout(this.#typing)
    positions.delete(this.#entry)
    positions.set(this.#entry, this.#table.position())
    if (positions.size > POSITIONS_MAX) positions.delete(positions.keys().next().value)
    this.#table.close()
  }

  // A column is sorted by its largest numbers first, which is what people look for.
  #sortBy(sort) {
    const first = sort === 'name' ? 'asc' : 'desc'
    this.order = this.sort !== sort ? first : this.order === 'asc' ? 'desc' : 'asc'
    this.sort = sort
    this.#changed()
  }

  // Not a request for each letter.
  #typed() {
    clearTimeout(this.#typing)
    this.#typing = setTimeout(() => this.#changed(), TYPING_MS)
  }

  #showSort() {
    this.#table.setSort(this.sort, this.order)
    this.#sortBox.input.value = this.sort
    setText(this.#orderButton, this.order === 'asc' ? 'Ascending ▲' : 'Descending ▼')
  }

  #changed() {
    this.#showSort()
    const query = new URLSearchParams({ sort: this.sort, order: this.order })
    if (this.#filter.input.value !== '') query.set('filter', this.#filter.input.value)
    // The way back from a tube leads to the same list.
    history.replaceState(history.state, '', `#/tubes?${query}`)
    this.#table.toTop()
    this.#app.poller.now()
  }
}

export const tubesPage = (app, query) => new Tubes(app, query)

/** The link to the page of a tube. */
export const tubeLink = (name) =>
  el('a', { href: `#/tubes/${encodeURIComponent(name)}`, class: 'tube-name', text: name })

/** The path of a tube in the API. */
export const tubePath = (name) => `tubes/${segment(name)}`
