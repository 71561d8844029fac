// What people do on a page: forms, questions before an action, and notices of its result.

import { Cancelled, Garbled, Refused } from './api.js'
import { discard, el, field, newId, setText, show } from './dom.js'

const NOTICE_MS = 6000

/** The letters, digits and signs of the protocol, not beginning with "-". */
export const NAME_PATTERN = '[A-Za-z0-9+\\/;.$_\\(\\)][A-Za-z0-9\\-+\\/;.$_\\(\\)]*'
/** The same in words. */
export const NAME_RULE = '1 to 200 of the characters A-Z a-z 0-9 - + / ; . $ _ ( ), not beginning with -'

/** Shows a notice of a result. An error stays until it is closed, the next action begins, or another page opens. */
export function notify(text, isError = false) {
  const area = document.getElementById('notices')
  const close = el('button', {
    type: 'button',
    class: 'close',
    'aria-label': 'Close the notice',
    text: '×',
    on: { click: () => discard(node) },
  })
  const node = el(
    'div',
    { class: isError ? 'notice error' : 'notice', role: isError ? 'alert' : null },
    el('p', { text }),
    close,
  )
  while (area.childElementCount >= 3) discard(area.firstElementChild)
  area.append(node)
  if (!isError) setTimeout(() => discard(node), NOTICE_MS)
}

/** Closes the notices of errors. */
export function closeErrors() {
  for (const node of document.querySelectorAll('#notices .error')) discard(node)
}

/** Says in a sentence why a request has failed. */
export function reason(error) {
  if (error instanceof Refused) return error.message
  return error instanceof Garbled ? `${error.message}.` : `The server did not reply: ${error.message}.`
}

/** Says why an action has failed. */
export function explain(error) {
  return error instanceof Refused ? reason(error) : `${reason(error)} The action may or may not have been carried out.`
}

/** Runs `action` and returns its result, or shows its error and returns `null`. A refusal is shown at the field `beside`. */
export async function attempt(action, beside = null) {
  beside?.fail(null)
  closeErrors()
  try {
    return await action()
  } catch (error) {
    if (error instanceof Refused && beside !== null) beside.fail(error.message)
    else if (!(error instanceof Cancelled)) notify(explain(error), true)
    return null
  }
}

/** What buttons read. The node says why something is not loaded, with a button that tries again. */
export class Reading {
  #poller
  #latest = 0
  #again = null
  #text = el('p')
  #retry = el('button', { type: 'button', text: 'Try again', on: { click: () => this.#again() } })
  node = el('div', { class: 'problem failed', role: 'alert', hidden: true }, this.#text, this.#retry)

  constructor(app) {
    this.#poller = app.poller
  }

  /**
   * Returns what `read` returns. If that fails, shows `otherwise`, a sentence, with the reason, and returns `undefined`: what was
   * shown before stays. The same is returned if a later reading has begun. `again` is what the button does. With a `signal`, the
   * reading is part of a repeated one.
   */
  async load(otherwise, read, again, signal = null) {
    this.#latest += 1
    const own = this.#latest
    closeErrors()
    try {
      const value = await (signal === null ? this.#poller.act(read) : read())
      if (own !== this.#latest) return undefined
      show(this.node, false)
      return value
    } catch (error) {
      if (error instanceof Cancelled) throw error
      if (own === this.#latest) this.#fail(otherwise, error, again)
      return undefined
    }
  }

  /** Forgets a reading in progress and its error. */
  clear() {
    this.#latest += 1
    show(this.node, false)
  }

  #fail(otherwise, error, again) {
    this.#again = again
    setText(this.#text, `${otherwise} ${reason(error)}`)
    show(this.node, true)
  }
}

/** A form with one button. `submit` runs when its fields are valid. */
export function form(label, button, fields, submit, properties = {}) {
  const send = el('button', { type: 'submit', class: properties.kind ?? 'primary', text: button })
  const node = el(
    'form',
    { class: properties.class ?? 'inline-form', 'aria-label': label },
    ...fields.map((one) => one.node),
    send,
  )
  node.addEventListener('submit', async (event) => {
    event.preventDefault()
    // A second click would act twice.
    if (send.hasAttribute('aria-busy')) return
    send.setAttribute('aria-busy', 'true')
    try {
      await submit()
    } finally {
      send.removeAttribute('aria-busy')
    }
  })
  return { node, send }
}

/** A field of a name: of a tube, a group or a key. */
export const nameField = (label, properties = {}, hint = null) =>
  field(
    label,
    {
      type: 'text',
      maxlength: 200,
      autocomplete: 'off',
      spellcheck: 'false',
      autocapitalize: 'none',
      pattern: NAME_PATTERN,
      title: NAME_RULE,
      ...properties,
    },
    hint,
  )

/** A field of the name of a tube, which must not be empty. */
export const tubeField = (label, value = '') => nameField(label, { required: true, value })

/** A button that reads again what was missing. */
export const checkAgain = (poller) =>
  el('button', { type: 'button', text: 'Check again', on: { click: () => poller.now() } })

/** Closes every question, with the answer no. */
export function closeQuestions() {
  for (const dialog of document.querySelectorAll('dialog')) dialog.close('no')
}

/** Asks before an action that cannot be taken back. Resolves to whether the answer is yes. */
export function ask(question, consequence, yes) {
  const confirm = el('button', { type: 'submit', class: 'danger', text: yes })
  return dialog(question, consequence, [], confirm)
}

/**
 * Asks for the fields of an action. Resolves to whether they are filled in. Before it closes it calls `carryOut`, and stays open if that
 * returns false.
 */
export function askFor(question, explanation, fields, yes, carryOut) {
  return dialog(question, explanation, fields, el('button', { type: 'submit', class: 'primary', text: yes }), carryOut)
}

function dialog(question, text, fields, confirm, carryOut = async () => true) {
  const id = newId('ask')
  return new Promise((resolve) => {
    const cancel = el('button', { type: 'button', text: 'Cancel', on: { click: () => node.close('no') } })
    const questions = el(
      'form',
      { class: 'column-form' },
      ...fields.map((one) => one.node),
      el('div', { class: 'buttons' }, cancel, confirm),
    )
    questions.addEventListener('submit', async (event) => {
      event.preventDefault()
      if (cancel.disabled) return
      cancel.disabled = true
      const isDone = await carryOut()
      cancel.disabled = false
      if (isDone) node.close('yes')
    })
    const node = el(
      'dialog',
      { 'aria-labelledby': id, 'aria-describedby': `${id}-text` },
      el('h2', { id, text: question }),
      el('p', { id: `${id}-text`, text }),
      questions,
    )
    node.addEventListener('cancel', (event) => {
      if (cancel.disabled) event.preventDefault()
    })
    node.addEventListener('close', () => {
      node.remove()
      resolve(node.returnValue === 'yes')
    })
    document.body.append(node)
    node.showModal()
    const first = fields[0]?.input ?? cancel
    first.focus()
  })
}
