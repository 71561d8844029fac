// The form that puts a job.

import { put } from './api.js'
import { form, nameField, notify, tubeField } from './actions.js'
import { counted, exactBytes } from './format.js'
import { el, field, numberField, setText, show } from './dom.js'
import { jobLink } from './job.js'
import { Controls } from './shell.js'
import { tubeLink } from './tubes.js'

const DRAINING = 'No job can be put while the server is draining. The overview has the button that ends this.'

/** The fields of the tags, by their kinds. */
function tagFields() {
  const idp = nameField('Idempotency key', {}, 'A tube has one job of a key: a second put adds none.')
  const ttl = numberField('Seconds to keep it', 0, { hint: 'After the job is deleted.' })
  const con = nameField('Concurrency key', {}, 'Clients reserve a limited number of its jobs at a time.')
  const limit = numberField('Jobs at a time', 1, { min: 1, hint: 'The newest job of the key decides.' })
  const grp = nameField('Group', {}, 'Jobs may wait for it.')
  const aft = nameField('After group', {}, 'Held until all its jobs are deleted.')
  const fields = [idp, ttl, con, limit, grp, aft]
  const node = el(
    'details',
    { class: 'tags' },
    el('summary', { text: 'Tags' }),
    el('div', { class: 'pairs' }, ...fields.map((one) => one.node)),
  )
  const tags = () => {
    const keys = { idp: [idp, ttl], con: [con, limit], grp: [grp], aft: [aft] }
    const given = Object.entries(keys).filter(([, [key]]) => key.input.value !== '')
    return Object.fromEntries(given.map(([kind, parts]) => [kind, parts.map((part) => part.input.value).join(':')]))
  }
  // A field that the browser refuses must be seen.
  node.addEventListener('invalid', () => (node.open = true), true)
  return { node, tags }
}

/** What has become of a put: a new job, or one with the same idempotency key. */
function outcome({ id, state, priority }, tube) {
  if (state === undefined) return ['Put ', jobLink(id), ' into ', tubeLink(tube), '.']
  const urgency = priority === undefined ? '' : `, and now has the priority ${priority}`
  return ['No new job: ', jobLink(id), ` has this idempotency key. It is ${state}${urgency}.`]
}

export function putPage(app, query) {
  const tube = tubeField('Tube', query.get('tube') ?? 'default')
  const priority = numberField('Priority', 65536, { hint: 'The smallest goes first.' })
  const delay = numberField('Delay in seconds', 0, { hint: 'Until the job is ready.' })
  const ttr = numberField('TTR in seconds', 60, { min: 1, hint: 'The time to run, once reserved.' })
  const tags = tagFields()
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
    const done = await app.act(() => put(name, { ...numbers, ...tags.tags() }, body))
    if (done === null) return
    result.replaceChildren(el('p', {}, ...outcome(done, name)))
    removeFile()
  }
  const { node, send } = form(
    'Put a job',
    'Put',
    [
      tube,
      { node: el('div', { class: 'numbers' }, priority.node, delay.node, ttr.node) },
      tags,
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
