// The body of a job: as text, as JSON with indentation, or as a hex dump. It is shown as text and never interpreted.

import { readBody } from './api.js'
import { Reading } from './actions.js'
import { bytes as size, counted, exactBytes, hiddenIn, visible } from './format.js'
import { el, newId, setText, show } from './dom.js'

const FIRST_BYTES = 256 * 1024
// What a page can show without a pause. A larger body can be saved.
const SHOWN_BYTES_MAX = 1024 * 1024
// What is drawn in a frame.
const HEX_PIECE_BYTES = 16 * 1024
// Indentation grows with the depth of the values, so both are bounded.
const INDENTED_LEVELS_MAX = 64
const INDENTED_CHARS_MAX = 2 * SHOWN_BYTES_MAX

/** The text of UTF-8 bytes, or `null` if they are binary. The last character of a part may be incomplete. */
export function asText(bytes, isPart) {
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes, { stream: isPart })
    // Control characters other than tab, line feed and carriage return are not text.
    // eslint-disable-next-line no-control-regex
    return /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/.test(text) ? null : text
  } catch {
    return null
  }
}

/** Whether a text begins as an object or an array of JSON does. */
const beginsAsJson = (text) => /^\s*[[{]/.test(text)

/** Whether a text is an object or an array of JSON. */
function isJson(text) {
  if (!beginsAsJson(text)) return false
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/**
 * JSON with indentation, and if it has none, why. Only spaces between tokens change, so large numbers and repeated keys
 * stay as they were sent.
 */
export function asJson(text) {
  const lines = []
  let line = ''
  let depth = 0
  let last = ''
  let size = 0
  const lineBreak = () => {
    lines.push(line)
    size += line.length + 1
    line = '  '.repeat(depth)
  }
  for (const [token] of text.matchAll(/"[^"\\]*(?:\\.[^"\\]*)*"|[[\]{}:,]|[^\s[\]{}:,"]+/g)) {
    const ends = token === ']' || token === '}'
    const isFirst = last === '[' || last === '{'
    if (ends) depth -= 1
    if (ends ? !isFirst : isFirst || last === ',') lineBreak()
    line += token === ':' ? ': ' : token
    if (token === '[' || token === '{') depth += 1
    if (depth > INDENTED_LEVELS_MAX)
      return { json: null, problem: `not indented, since it has more than ${INDENTED_LEVELS_MAX} levels` }
    if (size > INDENTED_CHARS_MAX) return { json: null, problem: 'not indented, since that would be too long' }
    last = token
  }
  lines.push(line)
  return { json: lines.join('\n'), problem: null }
}

/** The same, or the reason why it is shown as text. Both are `null` for what is no object or array of JSON. */
function indented(text) {
  try {
    return isJson(text) ? asJson(text) : { json: null, problem: null }
  } catch {
    return { json: null, problem: 'not indented, since the browser cannot do it' }
  }
}

/** Why a part of a text is not shown as JSON, or `null` if it is no JSON anyway. */
function partProblem(text, whole) {
  if (!beginsAsJson(text)) return null
  return whole <= SHOWN_BYTES_MAX
    ? 'JSON is shown once the whole body is'
    : `JSON is shown up to ${exactBytes(SHOWN_BYTES_MAX)} only`
}

/** Lines of 16 bytes from `begin` to `end`: offset, bytes, and the printable ones of them as ASCII. */
function asHex(bytes, begin, end) {
  const lines = []
  for (let offset = begin; offset < end; offset += 16) {
    const line = [...bytes.subarray(offset, Math.min(offset + 16, end))]
    const hex = line.map((byte) => byte.toString(16).padStart(2, '0'))
    const ascii = line.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : '.')).join('')
    const halves = `${hex.slice(0, 8).join(' ').padEnd(23)}  ${hex.slice(8).join(' ').padEnd(23)}`
    lines.push(`${offset.toString(16).padStart(8, '0')}  ${halves}  ${ascii}`)
  }
  return lines.join('\n')
}

/**
 * Fills a node with the hex dump of bytes, one piece per frame, since a large one takes seconds. Returns a function that
 * gives up the rest.
 */
function drawHex(node, bytes) {
  let offset = 0
  let frame = 0
  node.replaceChildren()
  const draw = () => {
    const end = Math.min(offset + HEX_PIECE_BYTES, bytes.length)
    const piece = el('span', { class: 'piece', text: asHex(bytes, offset, end) })
    // The height before the browser lays out the piece, which it does once the piece is visible.
    piece.style.containIntrinsicBlockSize = `${Math.ceil((end - offset) / 16)}lh`
    node.append(piece)
    offset = end
    if (offset < bytes.length) frame = requestAnimationFrame(draw)
  }
  draw()
  return () => cancelAnimationFrame(frame)
}

const VIEWS = { json: 'JSON', text: 'Text', hex: 'Hex' }

/** Shows the body of one job at a time. */
export class BodyView {
  #poller
  #reading
  #id = null
  #part = new Uint8Array()
  #text = null
  #json = null
  #radios = new Map()
  #endDrawing = () => {}
  #content = el('pre', { class: 'body', tabindex: '0', role: 'group', 'aria-label': 'Body' })
  #summary = el('p', { class: 'hint' })
  #shown
  #whole = el('button', {
    type: 'button',
    class: 'quiet',
    text: 'Show the whole body',
    on: { click: () => this.#showWhole() },
  })
  #save = el('button', {
    type: 'button',
    class: 'quiet',
    text: 'Save to a file',
    on: { click: () => this.#download() },
  })

  constructor(app) {
    this.#poller = app.poller
    this.#reading = new Reading(app)
    const group = newId('view')
    const views = Object.entries(VIEWS).map(([view, label]) => {
      const radio = el('input', {
        type: 'radio',
        name: group,
        id: `${group}-${view}`,
        on: { change: () => this.#draw(view) },
      })
      this.#radios.set(view, radio)
      return el('span', {}, radio, el('label', { for: `${group}-${view}`, text: label }))
    })
    const choice = el(
      'fieldset',
      { class: 'segments' },
      el('legend', { class: 'visually-hidden', text: 'Show the body as' }),
      ...views,
    )
    // What stands above and below the reason why a body is not loaded.
    const tools = el('div', { class: 'body-tools' }, choice, this.#whole, this.#save)
    const content = el('div', {}, this.#content, this.#summary)
    this.#shown = [tools, content]
    this.node = el('div', { class: 'body-view' }, tools, this.#reading.node, content)
  }

  /** Reads the body of a job, and shows it in the view that suits it. */
  async load(id) {
    const { bytes, size } = await readBody(id, FIRST_BYTES)
    this.#id = id
    this.#reading.clear()
    this.#take(bytes, size)
  }

  /** The same as a part of a repeated reading. Shows why the body is not loaded. Returns whether it is. */
  async loadBeside(id, signal) {
    this.#id = id
    const read = () => readBody(id, FIRST_BYTES, signal)
    const body = await this.#reading.load('The body is not loaded.', read, () => this.#poller.now(), signal)
    for (const node of this.#shown) show(node, body !== undefined)
    if (body !== undefined) this.#take(body.bytes, body.size)
    return body !== undefined
  }

  #take(bytes, whole) {
    this.#part = bytes
    const isPart = bytes.length < whole
    const text = asText(bytes, isPart)
    const { json, problem } = text === null || isPart ? { json: null, problem: null } : indented(text)
    const hint = text === null || !isPart ? problem : partProblem(text, whole)
    this.#text = text
    this.#json = json
    this.#radios.get('text').disabled = text === null
    this.#radios.get('json').disabled = json === null
    show(this.#whole, isPart && whole <= SHOWN_BYTES_MAX, this.#content)
    const isText = text !== null && problem === null
    const kind = whole === 0 ? 'empty' : isText && json === null ? 'text' : text !== null ? 'JSON' : 'binary'
    const hidden = text === null ? 0 : hiddenIn(text)
    const notes = [
      hint === null ? '' : `, ${hint}`,
      hidden === 0 ? '' : `, ${counted(hidden, 'invisible character')} shown by number`,
    ].join('')
    setText(
      this.#summary,
      `${isPart ? `The first ${exactBytes(bytes.length)} of ${exactBytes(whole)}` : size(whole)}, ${kind}${notes}`,
    )
    this.#draw(json !== null ? 'json' : text !== null ? 'text' : 'hex')
  }

  #draw(view) {
    this.#radios.get(view).checked = true
    this.#content.classList.toggle('hex', view === 'hex')
    this.#endDrawing()
    if (view === 'hex') this.#endDrawing = drawHex(this.#content, this.#part)
    else setText(this.#content, visible(view === 'json' ? this.#json : this.#text))
  }

  #readWhole(otherwise, again) {
    return this.#reading.load(otherwise, () => readBody(this.#id), again)
  }

  async #showWhole() {
    const body = await this.#readWhole('The whole body is not loaded.', () => this.#showWhole())
    if (body !== undefined) this.#take(body.bytes, body.size)
  }

  async #download() {
    const body = await this.#readWhole('The body is not saved.', () => this.#download())
    if (body === undefined) return
    const url = URL.createObjectURL(new Blob([body.bytes], { type: 'application/octet-stream' }))
    el('a', { href: url, download: `job-${this.#id}` }).click()
    setTimeout(() => URL.revokeObjectURL(url), 10000)
  }
}
