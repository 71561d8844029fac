// The form that puts a job.

import { put } from './api.js'
import { form, notify } from './actions.js'
import { counted, exactBytes } from './format.js'
import { el, field, numberField, setText, show } from './dom.js'
import { jobLink } from './job.js'
import { Controls } from './shell.js'
import { tubeLink } from './tubes.js'

const DRAINING = 'No job can be put while the server is draining. The overview has the button that ends this.'

/** The letters, digits and signs of the protocol, not beginning with "-". */
export const TUBE_PATTERN = '[A-Za-z0-9+\\/;.$_\\(\\)][A-Za-z0-9\\-+\\/;.$_\\(\\)]*'
/** The same in words. */
export const TUBE_NAME = '1 to 200 of A-Z a-z 0-9 - + / ; . $ _ ( ), not beginning with -'

export function putPage(app, query) {
  const tube = field('Tube', {
    type: 'text',
    required: true,
    maxlength: 200,
    autocomplete: 'off',
    spellcheck: 'false',
    autocapitalize: 'none',
    value: query.get('tube') ?? 'default',
    pattern: TUBE_PATTERN,
    title: TUBE_NAME,
  })
  const priority = numberField('Priority', 65536, { hint: 'The smallest goes first.' })
  const delay = numberField('Delay in seconds', 0, { hint: 'Until the job is ready.' })
  const ttr = numberField('TTR in seconds', 60, { min: 1, hint: 'The time to run, once reserved.' })
  const text = field('Body', { tag: 'textarea', rows: 8, spellcheck: 'false' })
  const file = field('Or the content of a file', { type: 'file' })
  const size = el('p', { class: 'hint' })
  const draining = el('p', { class: 'hint read-only', text: DRAINING, hidden: true })
  const result = el('div', { class: 'result', role: 'status' })
  const controls = new Controls()

  const clear = el('button', {
    type: 'button',
    class: 'quiet',
    text: 'Remove the file',
    hidden: true,
    on: {
      click: () => removeFile(),
    },
  })
  const fileChanged = () => {
    const hasFile = file.input.files.length > 0
    text.input.disabled = hasFile
    show(clear, hasFile)
  }
  // The same file would be put again by a second click.
  const removeFile = () => {
    file.input.value = ''
    fileChanged()
  }
  file.input.addEventListener('change', fileChanged)

  const submit = async () => {
    const body = file.input.files[0] ?? text.input.value
    const limit = app.server.limits.max_job_bytes
    const length = typeof body === 'string' ? new TextEncoder().encode(body).length : body.size
    if (length > limit)
      return notify(
        `The body has ${counted(length, 'byte')}, and the server takes at most ${counted(limit, 'byte')} (--max-job-size).`,
        true,
      )
    const numbers = { priority: priority.input.value, delay: delay.input.value, ttr: ttr.input.value }
    const name = tube.input.value
    const id = await app.act(() => put(name, numbers, body))
    if (id === null) return
    result.replaceChildren(el('p', {}, 'Put ', jobLink(id), ' into ', tubeLink(name), '.'))
    removeFile()
  }
  const { node, send } = form(
    'Put a job',
    'Put',
    [
      tube,
      { node: el('div', { class: 'numbers' }, priority.node, delay.node, ttr.node) },
      text,
      file,
      { node: clear },
      { node: size },
    ],
    submit,
    { class: 'column-form' },
  )
  // Also where the browser refuses the form, which is then not submitted.
  send.addEventListener('click', () => result.replaceChildren())
  return {
    title: 'Put a job',
    node: el(
      'div',
      { class: 'narrow' },
      el('h1', { text: 'Put a job' }),
      controls.note,
      draining,
      controls.group(node),
      result,
    ),
    interval: 5000,
    serverChanged(server) {
      show(draining, server.draining)
      controls.update(server, server.draining)
      setText(size, `At most ${exactBytes(server.limits.max_job_bytes)}.`)
    },
  }
}
