// What people do on a page: forms, questions before an action, and notices of its result.

import { Cancelled, Refused } from './api.js'
import { el, newId } from './dom.js'

const NOTICE_MS = 6000

/** Shows a notice of a result. An error stays until it is closed. */
export function notify(text, isError = false) {
  const area = document.getElementById('notices')
  const close = el('button', {
    type: 'button',
    class: 'close',
    'aria-label': 'Close the notice',
    text: '×',
    on: { click: () => node.remove() },
  })
  const node = el(
    'div',
    { class: isError ? 'notice error' : 'notice', role: isError ? 'alert' : null },
    el('p', { text }),
    close,
  )
  while (area.childElementCount >= 3) area.firstElementChild.remove()
  area.append(node)
  if (!isError) setTimeout(() => node.remove(), NOTICE_MS)
}

/** Says why an action has failed. */
export function explain(error) {
  if (error instanceof Refused) return error.message
  return `The server did not answer: ${error.message}. The action may or may not have happened.`
}

/** Runs `action` and returns its result, or shows its error and returns `null`. */
export async function attempt(action) {
  try {
    return await action()
  } catch (error) {
    if (!(error instanceof Cancelled)) notify(explain(error), true)
    return null
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

/** A button that reads again what was missing. */
export const lookAgain = (poller) =>
  el('button', { type: 'button', text: 'Look again', on: { click: () => poller.now() } })

/** Closes every question, with the answer no. */
export function closeQuestions() {
  for (const dialog of document.querySelectorAll('dialog')) dialog.close('no')
}

/** Asks before an action that cannot be taken back. Resolves to whether the answer is yes. */
export function ask(question, consequence, yes) {
  const id = newId('ask')
  return new Promise((resolve) => {
    const cancel = el('button', { type: 'button', text: 'Cancel', on: { click: () => dialog.close('no') } })
    const confirm = el('button', {
      type: 'button',
      class: 'danger',
      text: yes,
      on: { click: () => dialog.close('yes') },
    })
    const dialog = el(
      'dialog',
      { 'aria-labelledby': id, 'aria-describedby': `${id}-text` },
      el('h2', { id, text: question }),
      el('p', { id: `${id}-text`, text: consequence }),
      el('div', { class: 'buttons' }, cancel, confirm),
    )
    dialog.addEventListener('close', () => {
      dialog.remove()
      resolve(dialog.returnValue === 'yes')
    })
    document.body.append(dialog)
    dialog.showModal()
    cancel.focus()
  })
}
