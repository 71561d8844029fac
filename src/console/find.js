// The way to a job by its id, and to a group by its name.

import { form, nameField } from './actions.js'
import { el, field } from './dom.js'

/** The form that leads to a job. */
export function findJobForm() {
  const id = field('Job id', {
    type: 'text',
    inputmode: 'numeric',
    pattern: '[0-9]{1,20}',
    required: true,
    autocomplete: 'off',
    title: 'A whole number',
  })
  const { node } = form('Find a job', 'Show the job', [id], () => {
    location.hash = `#/jobs/${id.input.value}`
  })
  return { node, input: id.input }
}

/** The form that leads to a group. */
export function findGroupForm() {
  const name = nameField('Group name', { required: true })
  const { node } = form('Find a group', 'Show the group', [name], () => {
    location.hash = `#/groups/${encodeURIComponent(name.input.value)}`
  })
  return node
}

export function findPage() {
  const job = findJobForm()
  return {
    title: 'Find a job or a group',
    node: el(
      'div',
      { class: 'narrow' },
      el('h1', { text: 'Find a job or a group' }),
      el('p', { class: 'hint', text: 'A put returns the id of its job. The page of a tube lists its jobs.' }),
      job.node,
      el('p', { class: 'hint', text: 'A job joins a group, or waits for one, by the tags of its put.' }),
      findGroupForm(),
    ),
    focus: job.input,
  }
}
