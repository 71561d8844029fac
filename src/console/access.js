// Pages instead of a page: a token is needed, access is refused, there is no such page.

import { TOKEN, token } from './api.js'
import { form } from './actions.js'
import { el, field } from './dom.js'

/** Asks for the token of the server. `entered` runs when there is one. */
export function tokenPage(entered) {
  const wasRefused = token.get() !== null
  token.forget()
  const input = field(
    'Token',
    {
      type: 'password',
      required: true,
      // The white space around it is left out, as in the file.
      pattern: `\\s*${TOKEN}\\s*`,
      title: '16 to 256 visible ASCII characters',
      autocomplete: 'current-password',
      spellcheck: 'false',
      'aria-invalid': wasRefused ? 'true' : null,
    },
    'It is in the file of --http-token, or of your user in the file of --auth. This tab keeps it, until you forget it or close the tab. A browser that restores tabs may keep it on disk.',
  )
  const problem = wasRefused
    ? el('p', { class: 'problem', role: 'alert', text: 'The server does not accept this token.' })
    : null
  const open = form(
    'Enter the token',
    'Open the console',
    [input],
    () => {
      token.set(input.input.value.trim())
      entered()
    },
    { class: 'column-form' },
  )
  const node = el('div', { class: 'narrow' }, el('h1', { text: 'This server needs a token' }), problem, open.node)
  return { title: 'Token', node, focus: input.input }
}

/** A page that says what is wrong. `action` is a button or a link. */
export function problemPage(title, text, action = null) {
  return {
    title,
    node: el('div', { class: 'narrow empty-state' }, el('h1', { text: title }), el('p', { text }), action),
  }
}
