// Elements of a page. Data reaches the page as text only: nothing here takes markup.

/**
 * Returns a new element. `properties` are attributes, except `class`, `text`, and `on`, which holds listeners. An
 * attribute that is `true` is empty; one that is `false`, `null` or `undefined` is left out.
 */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag)
  for (const [name, value] of Object.entries(properties)) {
    if (name === 'on') {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener)
    } else if (name === 'text') {
      node.textContent = value
    } else if (name === 'class') {
      node.className = value
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value === true ? '' : value)
    }
  }
  node.append(...children.filter((child) => child !== null))
  return node
}

/** Sets the text of a node, and leaves the document alone if it has that text. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text
}

const canFocus = (node) =>
  node?.isConnected && node.checkVisibility({ visibilityProperty: true }) && !node.matches(':disabled')

/**
 * Makes a change that may hide, disable or remove a node. Focus that the node then loses goes to the first of `successors`
 * that can have it, or else to the card around the node, or to the page.
 */
function keepFocus(node, change, successors = []) {
  const focused = document.activeElement
  const hasFocus = node.contains(focused)
  const around = node.parentElement?.closest('.card')
  change()
  if (!hasFocus) return
  const next = [focused, ...successors, around, document.getElementById('content')].find(canFocus)
  next?.focus({ preventScroll: true })
}

/** Shows or hides a node. `successors` may get its focus. */
export function show(node, isShown, ...successors) {
  if (node.hidden !== isShown) return
  const change = () => {
    node.hidden = !isShown
  }
  keepFocus(node, change, successors)
}

/** Disables or enables a control, or a group of them. */
export function disable(node, isDisabled) {
  if (node.disabled === isDisabled) return
  keepFocus(node, () => {
    node.disabled = isDisabled
  })
}

/** Removes a node. `successors` may get its focus. */
export const discard = (node, ...successors) => keepFocus(node, () => node.remove(), successors)

/** Sets the content of a node, and leaves the document alone if it has that text: a link keeps the focus. */
function setNodes(node, content) {
  const text = content.map((part) => part.textContent ?? part).join('')
  if (node.textContent !== text) keepFocus(node, () => node.replaceChildren(...content))
}

/** Sets an attribute, or removes it if the value is `null`. */
export function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name)
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value)
}

let ids = 0

/** Returns an id that no other element of the document has. */
export function newId(prefix) {
  ids += 1
  return `${prefix}-${ids}`
}

/**
 * A labelled input. Returns the wrapper, the input, and `fail`, which shows why the server refuses the value. That text stays
 * until the value changes, or `fail` gets `null`.
 */
export function field(label, properties, hint = null) {
  const id = newId('field')
  const hintId = hint === null ? null : `${id}-hint`
  const tag = properties.tag ?? 'input'
  const { tag: _, ...attributes } = properties
  const input = el(tag, { id, 'aria-describedby': hintId, ...attributes })
  const parts = [el('label', { for: id, text: label }), input]
  if (hint !== null) parts.push(el('p', { class: 'hint', id: hintId, text: hint }))
  const node = el('div', { class: 'field' }, ...parts)
  const problem = el('p', { class: 'problem', id: `${id}-problem`, role: 'alert' })
  const fail = (text) => {
    problem.remove()
    if (text !== null) node.append(problem)
    setText(problem, text ?? '')
    setAttribute(input, 'aria-invalid', text === null ? null : 'true')
    setAttribute(input, 'aria-describedby', text === null ? hintId : [problem.id, hintId ?? ''].join(' ').trim())
  }
  input.addEventListener('input', () => fail(null))
  return { node, input, fail }
}

/** An input of a whole number from `min` to `max`. */
export function numberField(label, value, { min = 0, max = 4294967295, hint = null } = {}) {
  return field(label, { type: 'number', inputmode: 'numeric', required: true, step: 1, min, max, value }, hint)
}

/**
 * A list of names and values. `rows` maps a key to its label. Returns the node, and a function that takes the values by
 * key: a text, or a list of nodes and texts. A row whose value is `null` is hidden. A wide list has columns.
 */
export function facts(rows, isWide = false) {
  const node = el('dl', { class: isWide ? 'facts wide' : 'facts' })
  const values = new Map()
  for (const [key, label] of Object.entries(rows)) {
    const value = el('dd', { text: '–' })
    const row = el('div', { 'data-fact': key }, el('dt', { text: label }), value)
    node.append(row)
    values.set(key, { row, value })
  }
  const set = (all) => {
    for (const [key, { row, value }] of values) {
      const content = all[key]
      show(row, content !== null && content !== undefined)
      if (Array.isArray(content)) setNodes(value, content)
      else if (content !== null && content !== undefined) setText(value, content)
    }
  }
  return { node, set }
}

/** A titled section of a page. */
export function card(title, ...children) {
  const id = newId('card')
  return el('section', { class: 'card', tabindex: '-1', 'aria-labelledby': id }, el('h2', { id, text: title }), ...children)
}
