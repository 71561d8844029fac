// A table of any number of rows, of which only the visible ones exist.

import { el, setAttribute, setText } from './dom.js'

const NARROW = matchMedia('(max-width: 47.99rem)')
const ROW_WIDE = 37
const ROW_NARROW = 66
// Rows above and below the visible ones, so that slow scrolling shows no gaps and Tab finds the next row.
const MARGIN_ROWS = 12
// Browsers cannot lay out a higher element.
const HEIGHT_MAX = 16_000_000

/**
 * `columns`: for each its `key`, `label`, `sort` (if it can be sorted by), `isNumber`, and `isWide` if a narrow window leaves it
 * out. `fill(cells, row)` sets the content of the cells of a row, which `create(key)` makes. `moved` hears that other rows have
 * become visible.
 */
export class Table {
  #columns
  #fill
  #create
  #moved
  #total = 0
  #offset = 0
  #rows = []
  #height = ROW_WIDE
  #nodes = []
  #heads = new Map()
  #frame = 0
  // Where a table that was left is scrolled to as soon as it has rows.
  #start = null

  constructor({ label, columns, create, fill, moved, sorted }) {
    this.#columns = columns
    this.#create = create
    this.#fill = fill
    this.#moved = moved
    const head = el(
      'div',
      { role: 'row', class: 'table-row table-head', 'aria-rowindex': '1' },
      ...columns.map((column) => this.#head(column, sorted)),
    )
    this.space = el('div', { class: 'table-space', role: 'presentation' })
    this.scroller = el(
      'div',
      { class: 'table-scroller', role: 'rowgroup', tabindex: '0', 'aria-label': label },
      this.space,
    )
    this.scroller.addEventListener('scroll', () => this.#scheduled(true), { passive: true })
    this.node = el(
      'div',
      { class: 'table', role: 'table', 'aria-label': label, 'aria-colcount': String(columns.length) },
      el('div', { role: 'rowgroup' }, head),
      this.scroller,
    )
    this.observer = new ResizeObserver(() => this.#scheduled(true))
    this.observer.observe(this.scroller)
  }

  /** The rows to read: the visible ones and those beside them. */
  window() {
    const first = Math.max(0, (this.#start?.row ?? this.#first()) - MARGIN_ROWS)
    const limit = Math.min(500, Math.ceil(this.scroller.clientHeight / this.#height) + 2 * MARGIN_ROWS + 2)
    return { offset: first, limit: Math.max(limit, 40) }
  }

  /** Takes rows that were read. `total` is the number of rows of the whole table. */
  setRows(total, offset, rows) {
    this.#total = total
    this.#offset = offset
    this.#rows = rows
    setAttribute(this.node, 'aria-rowcount', String(total + 1))
    this.#setHeight()
    if (this.#start !== null) this.scroller.scrollTop = this.#start.pixels
    this.#start = null
    this.#draw()
  }

  /** Shows how the table is sorted. */
  setSort(sort, order) {
    for (const [key, { cell, arrow }] of this.#heads) {
      const isSorted = key === sort
      setAttribute(cell, 'aria-sort', isSorted ? `${order}ending` : null)
      setText(arrow, isSorted ? (order === 'asc' ? '▲' : '▼') : '')
    }
  }

  /** Where the table is scrolled to. */
  position() {
    return this.#start ?? { row: this.#first(), pixels: this.scroller.scrollTop }
  }

  /** Scrolls to a position once there are rows. */
  startAt(position) {
    this.#start = position
  }

  toTop() {
    this.#start = null
    this.scroller.scrollTop = 0
  }

  close() {
    this.observer.disconnect()
    cancelAnimationFrame(this.#frame)
  }

  #head(column, sorted) {
    const kind = column.isNumber ? 'number' : 'text'
    if (column.sort === undefined) return el('span', { role: 'columnheader', class: kind, text: column.label })
    const arrow = el('span', { class: 'arrow', 'aria-hidden': 'true' })
    const button = el('button', { type: 'button', on: { click: () => sorted(column.sort) } }, column.label, arrow)
    const cell = el('span', { role: 'columnheader', class: kind }, button)
    this.#heads.set(column.sort, { cell, arrow })
    return cell
  }

  #first() {
    const height = Math.min(this.#total * this.#height, HEIGHT_MAX)
    const hidden = height - this.scroller.clientHeight
    // Below the maximum the ratio is that of the rows themselves.
    const ratio = hidden <= 0 ? 0 : (this.#total * this.#height - this.scroller.clientHeight) / hidden
    return Math.floor((this.scroller.scrollTop * Math.max(1, ratio)) / this.#height)
  }

  #scheduled(hasMoved) {
    if (this.#frame !== 0) return
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0
      this.#draw()
      if (hasMoved && !this.#hasWindow()) this.#moved()
    })
  }

  #hasWindow() {
    const first = this.#first()
    const last = Math.min(this.#total, first + Math.ceil(this.scroller.clientHeight / this.#height) + 1)
    return first >= this.#offset && last <= this.#offset + this.#rows.length
  }

  #setHeight() {
    this.#height = NARROW.matches ? ROW_NARROW : ROW_WIDE
    const height = Math.min(this.#total * this.#height, HEIGHT_MAX)
    this.space.style.height = `${height}px`
    return height
  }

  #draw() {
    const height = this.#setHeight()
    const first = this.#first()
    const begin = Math.max(0, first - MARGIN_ROWS)
    const end = Math.min(this.#total, first + Math.ceil(this.scroller.clientHeight / this.#height) + MARGIN_ROWS)
    this.#place(begin, end)
    const scrolled = this.scroller.scrollTop - first * this.#height
    const shift = height < this.#total * this.#height ? scrolled - (scrolled % this.#height) : 0
    for (const node of this.#nodes) this.#drawRow(node, shift)
  }

  // Nodes of rows that are no longer drawn are used again. The others stay in place, so that focus stays where it is.
  #place(begin, end) {
    const spare = []
    const isSpare = ({ index }) => index < begin || index >= end
    while (this.#nodes.length > 0 && isSpare(this.#nodes[0])) spare.push(this.#nodes.shift())
    while (this.#nodes.length > 0 && isSpare(this.#nodes.at(-1))) spare.push(this.#nodes.pop())
    const take = (index) => {
      const node = spare.pop() ?? this.#newRow()
      node.index = index
      node.shown = null
      return node
    }
    while (this.#nodes.length > 0 && this.#nodes[0].index > begin) {
      const node = take(this.#nodes[0].index - 1)
      this.space.insertBefore(node.row, this.#nodes[0].row)
      this.#nodes.unshift(node)
    }
    while (begin + this.#nodes.length < end) {
      const node = take(begin + this.#nodes.length)
      this.space.append(node.row)
      this.#nodes.push(node)
    }
    for (const { row } of spare) row.remove()
  }

  #newRow() {
    const cells = {}
    const row = el('div', { role: 'row', class: 'table-row' })
    for (const column of this.#columns) {
      const content = this.#create(column.key)
      cells[column.key] = content
      row.append(
        el(
          'span',
          {
            role: 'cell',
            class: `${column.isNumber ? 'number' : 'text'} cell-${column.key}${column.isWide ? ' only-wide' : ''}`,
            'data-label': column.label,
          },
          content.node ?? content,
        ),
      )
    }
    return { row, cells, index: 0, shown: null }
  }

  #drawRow(node, shift) {
    node.row.style.transform = `translateY(${node.index * this.#height + shift}px)`
    setAttribute(node.row, 'aria-rowindex', String(node.index + 2))
    const row = this.#rows[node.index - this.#offset] ?? null
    node.row.classList.toggle('loading', row === null)
    if (row !== node.shown) this.#fill(node.cells, row)
    node.shown = row
  }
}
