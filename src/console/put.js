// The form that puts a job.

import { put } from './api.js'
import { form, nameField, notify, tubeField } from './actions.js'
import { counted, exactBytes } from './format.js'
import { el, field, numberField, setText, show } from './dom.js'
import { jobLink } from './job.js'
import { Controls } from './shell.js'
import { tubeLink } from './tubes.js'

const DRAINING = 'The server is draining: it refuses new jobs until it is undrained, on the overview.'

/** The fields of the tags, by their kinds. */
function tagFields() {
  const idp = nameField('Idempotency key', {}, 'A put that repeats the key of another job of the tube adds no job.')
  const ttl = numberField('TTL of the key in seconds', 0, {
    hint: 'The key is kept for this time after its job is deleted.',
  })
  const con = nameField('Concurrency key', {}, 'Clients reserve a limited number of jobs with this key at a time.')
  const limit = numberField('Limit of the key in jobs', 1, { min: 1, hint: 'The limit of the newest job with the key counts.' })
  const grp = nameField('Group', {}, 'The job joins this group. Other jobs can wait for the group.')
  const aft = nameField('After group', {}, 'The job is held until all jobs of this group are deleted.')
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
  const urgency = priority === undefined ? '' : `, and its priority is now ${priority}`
  return ['No new job: ', jobLink(id), ` has this idempotency key. It is ${state}${urgency}.`]
}

export function putPage(app, query) {
  const tube = tubeField('Tube', query.get('tube') ?? 'default')
  const priority = numberField('Priority', 65536, { hint: 'Workers get the smallest number first.' })
  const delay = numberField('Delay in seconds', 0, { hint: 'Workers get the job after this time at the earliest.' })
  const ttr = numberField('TTR in seconds', 60, {
    hint: 'The time to run: how long a worker has for the job. 0 is the default of the tube.',
  })
  const tags = tagFields()
  const text = field('Body', { tag: 'textarea', rows: 8, spellcheck: 'false' })
  const file = field('Or the content of a file', { type: 'file' })
  const size = el('p', { class: 'hint' })
  const alone = el('p', { class: 'hint read-only', hidden: true })
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
    show(clear, hasFile, file.input)
  }
  // The same file would be put again by a second click.
  const removeFile = () => {
    file.input.value = ''
    fileChanged()
  }
  file.input.addEventListener('change', fileChanged)

  const submit = async () => {
    const body = file.input.files[0] ?? text.input.value
    const limit = app.server?.limits.max_job_bytes ?? Infinity
    const length = typeof body === 'string' ? new TextEncoder().encode(body).length : body.size
    if (length > limit)
      return notify(
        `The body has ${counted(length, 'byte')}. The maximum job size is ${counted(limit, 'byte')} (--max-job-size).`,
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
      alone,
      draining,
      controls.group(node),
      result,
    ),
    interval: 5000,
    withoutServer(why) {
      setText(alone, `Only this page is open to you. ${why}`)
      show(alone, true)
    },
    serverChanged(server) {
      show(alone, false)
      show(draining, server.draining)
      controls.update(server, server.draining)
      setText(size, `Maximum job size: ${exactBytes(server.limits.max_job_bytes)}.`)
    },
  }
}
