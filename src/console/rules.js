// The rules of a tube: those that are set, counts of what they have done, and a form that sets them.

import { act } from './api.js'
import { form, NAME_PATTERN, NAME_RULE, nameField, notify } from './actions.js'
import * as format from './format.js'
import { card, el, facts, field, numberField, setText, show } from './dom.js'
import { tubeLink, tubePath } from './tubes.js'

const NUMBER_MAX = 4294967295

// By the keys of tube-config: a label, what its value counts, how that is shown, and what the rule does.
const RULES = {
  'max-attempts': {
    label: 'Maximum attempts',
    unit: 'Attempts',
    shown: format.count,
    hint: 'Timeouts, releases and lost connections count. The last attempt buries the job, or moves it to the dead-letter tube.',
  },
  'retry-for': {
    label: 'Retry for',
    unit: 'Seconds since the put',
    shown: format.exactSeconds,
    hint: 'A failure this long after the put is the last attempt.',
  },
  'retry-delay': {
    label: 'Retry delay',
    unit: 'Seconds',
    shown: format.exactSeconds,
    hint: 'A job that has failed is delayed by this time, unless its worker gives a delay.',
  },
  'retry-factor': {
    label: 'Retry factor',
    unit: 'Factor',
    shown: String,
    max: 100,
    step: 0.1,
    hint: 'Each further failure multiplies the delay by this number. Without the rule it doubles.',
  },
  'retry-max-delay': {
    label: 'Longest retry delay',
    unit: 'Seconds',
    shown: format.exactSeconds,
    hint: 'The delay after a failure grows no longer than this.',
  },
  'retry-jitter': {
    label: 'Retry jitter',
    unit: 'Part of the delay, up to 1',
    shown: String,
    min: 0.01,
    max: 1,
    step: 0.01,
    hint: 'This part of a delay is left to chance, so that jobs that fail together come back one by one. Without the rule it is 0.2.',
  },
  'lost-counts': {
    label: 'Lost connections count',
    unit: 'yes or no',
    shown: (value) => value,
    words: ['no', 'yes'],
    hint: 'Whether a lost connection is a failed attempt. Without the rule it is one.',
  },
  'dead-letter': {
    label: 'Dead-letter tube',
    unit: 'Name of another tube',
    shown: (value) => value,
    hint: 'A job out of attempts is moved to this tube instead of being buried.',
  },
  'max-jobs': {
    label: 'Maximum jobs',
    unit: 'Jobs',
    shown: format.count,
    hint: 'A put is refused if the tube has this many jobs.',
  },
  'max-bytes': {
    label: 'Maximum bytes',
    unit: 'Bytes',
    shown: format.exactBytes,
    // A larger number would be rounded on its way.
    max: Number.MAX_SAFE_INTEGER,
    hint: 'A put is refused if all bodies together would exceed this size.',
  },
  'default-ttr': {
    label: 'Default TTR',
    unit: 'Seconds',
    shown: format.exactSeconds,
    hint: 'The TTR of a job that is put with a TTR of 0.',
  },
  retention: {
    label: 'Retention',
    unit: 'Seconds',
    shown: format.exactSeconds,
    hint: 'A buried job is deleted after this time.',
  },
  rate: {
    label: 'Rate',
    unit: 'Jobs per second',
    shown: (value) => `${format.count(value)} per second`,
    max: 1000000,
    hint: 'Clients reserve at most this many jobs per second.',
  },
}

const COUNTS = {
  refusals: 'Refused commands',
  dead_letters: 'Jobs out of attempts',
  retries: 'Jobs delayed after a failure',
  expiries: 'Expired buried jobs',
  rate_waits: 'Waits for the rate',
}

/** The form that sets a rule. `set(key, value, beside)` sends it. */
function ruleForm(set) {
  const choice = field('Rule', { tag: 'select' }, '')
  const hint = choice.node.querySelector('.hint')
  for (const [key, { label }] of Object.entries(RULES)) choice.input.append(el('option', { value: key, text: label }))
  const number = numberField('', '', { min: 1 })
  // A 0 would remove the rule.
  const tube = nameField(RULES['dead-letter'].unit, {
    required: true,
    pattern: `(?!0$)${NAME_PATTERN}`,
    title: `${NAME_RULE}, and not 0`,
  })
  const word = field('Value', { tag: 'select' })
  for (const value of RULES['lost-counts'].words) word.input.append(el('option', { value, text: value }))
  const used = () => {
    if (choice.input.value === 'dead-letter') return tube
    return RULES[choice.input.value].words === undefined ? number : word
  }
  const chosen = () => {
    const rule = RULES[choice.input.value]
    for (const one of [number, tube, word]) {
      const isUsed = one === used()
      show(one.node, isUsed)
      one.fail(null)
      if (one !== word) one.input.value = ''
      // A field that is not used must not be required.
      one.input.disabled = !isUsed
    }
    setText(number.node.querySelector('label'), used() === number ? rule.unit : '')
    number.input.min = rule.min ?? 1
    number.input.max = rule.max ?? NUMBER_MAX
    number.input.step = rule.step ?? 1
    setText(hint, rule.hint)
  }
  choice.input.addEventListener('change', chosen)
  chosen()
  const submit = () => {
    const { input } = used()
    return set(choice.input.value, used() === number ? Number(input.value) : input.value, used())
  }
  const { node } = form('Set a rule', 'Set the rule', [choice, number, tube, word], submit, { class: 'column-form' })
  return { node, focus: () => choice.input.focus() }
}

/** The rules of a tube. They are set and removed here. */
export function rulesCard(app, name, controls) {
  const rows = facts(Object.fromEntries(Object.entries(RULES).map(([key, { label }]) => [key, label])))
  const counts = facts(COUNTS)
  const counted = el('div', { hidden: true }, el('h3', { text: 'Since the first rule was set or the server started' }), counts.node)
  const none = el('p', { class: 'hint', text: 'This tube has no rules.' })
  const send = (key, value, beside = null) => app.act(() => act(`${tubePath(name)}/config`, { key, value }), beside)
  const { node: setting, focus } = ruleForm(async (key, value, beside) => {
    const { label, shown } = RULES[key]
    if ((await send(key, value, beside)) !== null) notify(`The rule is set: ${label}, ${shown(value)}.`)
  })
  const remove = (key, { label }) =>
    el('button', {
      type: 'button',
      class: 'quiet small',
      'aria-label': `Remove the rule ${label}`,
      text: 'Remove',
      on: {
        click: async () => {
          if ((await send(key, 0)) === null) return
          notify(`The rule is removed: ${label}.`)
          // The button is gone.
          focus()
        },
      },
    })
  const removes = Object.fromEntries(Object.entries(RULES).map(([key, rule]) => [key, remove(key, rule)]))
  const node = card('Rules', controls.group(el('div', { class: 'columns' }, el('div', {}, none, rows.node, counted), setting)))
  const set = ({ rules = {}, rule_counts }) => {
    const content = ([key, value]) => {
      const shown = key === 'dead-letter' ? tubeLink(value) : RULES[key].shown(value)
      return [key, [shown, removes[key]]]
    }
    show(none, Object.keys(rules).length === 0)
    rows.set(Object.fromEntries(Object.entries(rules).map(content)))
    show(counted, rule_counts !== undefined)
    if (rule_counts !== undefined)
      counts.set(Object.fromEntries(Object.entries(rule_counts).map(([key, value]) => [key, format.count(value)])))
  }
  return { node, set }
}
