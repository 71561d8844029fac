// What the console changes on a server.

import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { until, withConsole } from './kit.mjs'

async function a_tube_is_paused_and_resumed() {
  await withConsole({}, async (view, server, client) => {
    await client.put('mail', 'x')
    await view.go('#/tubes/mail')
    await view.shows('.pause-state', 'Not paused.')
    await view.page.getByLabel('Seconds to pause').fill('500')
    await view.button('Pause').click()
    await view.notice(/paused for 8 min 20 s/)
    await view.shows('.pause-state', /^Paused: 8 min/)
    await view.shows('h1', 'Tube mail paused')
    assert.ok((await server.api('tubes/mail')).paused_seconds > 490)
    await view.go('#/tubes')
    await view.shows('.table-row:has-text("mail") .badge', 'paused')
    await view.go('#/tubes/mail')
    await view.button('Resume').click()
    await view.shows('.pause-state', 'Not paused.')
    await view.shows('h1', 'Tube mail')
    assert.equal((await server.api('tubes/mail')).paused_seconds, 0)
  })
}

async function jobs_of_a_tube_are_kicked() {
  await withConsole({}, async (view, _, client) => {
    for (let job = 0; job < 5; job += 1) await client.put('mail', 'x', { delay: 1000 })
    await view.go('#/tubes/mail')
    await view.page.getByLabel('Maximum number of jobs').fill('3')
    await view.button('Kick').click()
    await view.notice(/^Kicked 3 jobs\.$/)
    await view.shows('.tile.ready .tile-value', '3')
    await view.shows('.tile.delayed .tile-value', '2')
  })
}

async function what_was_listed_is_listed_again_after_an_action() {
  await withConsole({}, async (view, _, client) => {
    for (let job = 0; job < 2; job += 1) {
      const id = await client.put('mail', 'x')
      await client.reserve('mail')
      await client.ask(`bury ${id} 0`)
    }
    await view.go('#/tubes/mail')
    await view.button('List buried').click()
    await view.shows('.listed', '2 buried jobs, from 1 to 2.')
    await view.button('Next buried').click()
    await view.shows('.next-job', 'Next buried job: job 1')
    await view.page.getByLabel('Maximum number of jobs').fill('1')
    await view.button('Kick').click()
    await view.notice(/^Kicked 1 job\.$/)
    await view.shows('.listed', '1 buried job, from 2 to 2.')
    await view.shows('.next-job', 'Next buried job: job 2')
  })
}

async function the_unreserved_jobs_of_a_tube_are_deleted_after_a_question() {
  await withConsole({}, async (view, server, client) => {
    for (const delay of [0, 0, 1000]) await client.put('mail', 'x', { delay })
    await client.reserve('mail')
    await view.go('#/tubes/mail')
    await view.button('Delete unreserved jobs').click()
    await view.shows('dialog h2', 'Delete the unreserved jobs of the tube mail?')
    await view.shows('dialog p', /Reserved jobs stay with their clients/)
    await view.page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click()
    await view.page.getByRole('dialog').waitFor({ state: 'detached' })
    assert.equal((await server.api('tubes/mail')).ready, 1)
    await view.button('Delete unreserved jobs').click()
    await view.page.getByRole('dialog').getByRole('button', { name: 'Delete unreserved jobs' }).click()
    await view.notice(/^Deleted 2 jobs\.$/)
    await view.shows('.tile.ready .tile-value', '0')
    await view.shows('.tile.delayed .tile-value', '0')
    await view.shows('.tile.reserved .tile-value', '1')
  })
}

async function the_next_jobs_of_a_tube_are_shown() {
  await withConsole({ expected: [/404/] }, async (view, _, client) => {
    await client.put('mail', 'to bury')
    const buried = await client.reserve('mail')
    await client.ask(`bury ${buried} 1`)
    const ready = await client.put('mail', 'ready body')
    await client.put('mail', 'later', { delay: 2000 })
    const delayed = await client.put('mail', '{"soon":true}', { delay: 1000 })
    await client.put('empty', 'x')
    await view.go('#/tubes/mail')
    for (const [state, id, body] of [
      ['ready', ready, 'ready body'],
      ['delayed', delayed, '{\n  "soon": true\n}'],
      ['buried', buried, 'to bury'],
    ]) {
      await view.button(`Next ${state}`).click()
      await view.shows('.next-job', `Next ${state} job: job ${id}`)
      assert.equal(await view.text('pre.body'), body)
      await view.shows('.card:has-text("Next jobs") [data-fact="state"] dd', state)
    }
    await view.page.getByRole('link', { name: `job ${buried}` }).click()
    await view.shows('h1', `Job ${buried} buried`)
    await view.go('#/tubes/mail')
    const reserved = await client.take()
    await view.button('Longest reserved').click()
    await view.shows('.next-job', `Longest reserved job: job ${reserved}`)
    await view.go('#/tubes/empty')
    await view.button('Next buried').click()
    await view.shows('.next', 'There is no buried job in this tube.')
  })
}

async function the_jobs_of_a_tube_are_listed_page_by_page() {
  await withConsole({}, async (view, _, client) => {
    for (let job = 0; job < 60; job += 1) await client.put('mail', 'x'.repeat(job), { delay: 5000 })
    const buried = await client.put('mail', 'to bury')
    await client.reserve('mail')
    await view.go('#/tubes/mail')
    await view.button('List reserved').click()
    await view.shows('.job-rows thead th:last-child', 'TTR ends in')
    await view.shows('.listed', `1 reserved job, from ${buried} to ${buried}.`)
    await client.ask(`bury ${buried} 7`)
    await view.button('List delayed').click()
    await view.shows('.listed', '50 delayed jobs, from 1 to 50.')
    await view.shows('.job-rows tbody tr:nth-child(50) th', 'job 50')
    await view.shows('.job-rows thead th:last-child', 'Ready in')
    await view.button('Next page').click()
    await view.shows('.listed', '10 delayed jobs, from 51 to 60.')
    const pressed = () => view.page.locator('button[aria-pressed="true"]').allInnerTexts()
    assert.deepEqual(await pressed(), ['List delayed'])
    await view.shows('.job-rows tbody tr:last-child td:nth-child(4)', '59 B')
    assert.equal(await view.page.getByRole('button', { name: 'Next page' }).count(), 0)
    await view.button('First page').click()
    await view.shows('.listed', '50 delayed jobs, from 1 to 50.')
    assert.equal(await view.page.getByRole('button', { name: 'First page' }).count(), 0)
    assert.ok((await view.page.evaluate(() => window.scrollY)) > 0)
    await view.button('Top of the tube').click()
    assert.equal(await view.page.evaluate(() => window.scrollY), 0)
    assert.equal(await view.page.evaluate(() => document.activeElement.tagName), 'H1')
    await view.button('List ready').click()
    await view.shows('.listed', 'There is no ready job in this tube.')
    assert.deepEqual(await pressed(), ['List ready'])
    await view.button('List buried').click()
    await view.shows('.job-rows tbody td:nth-child(2)', '7')
    await view.page.locator('.job-rows').getByRole('link', { name: `job ${buried}` }).click()
    await view.shows('h1', `Job ${buried} buried`)
  })
}

async function a_job_is_kicked_released_buried_and_deleted() {
  await withConsole({ expected: [/404/] }, async (view, server, client) => {
    const id = await client.put('mail', 'x', { delay: 4000 })
    const state = () => server.api(`jobs/${id}`)
    await view.go(`#/jobs/${id}`)
    await view.button('Kick').click()
    await view.shows('h1', `Job ${id} ready`)
    assert.ok(await view.button('Kick').isDisabled())

    const bury = view.page.getByRole('form', { name: 'Bury the job' })
    await bury.getByLabel('Priority').fill('12')
    await bury.getByRole('button').click()
    await view.shows('h1', `Job ${id} buried`)
    assert.equal((await state()).priority, 12)

    const release = view.page.getByRole('form', { name: 'Release the job' })
    await release.getByLabel('Priority').fill('99')
    await release.getByLabel('Delay in seconds').fill('700')
    await release.getByRole('button').click()
    await view.shows('h1', `Job ${id} delayed`)
    const { priority, delay_seconds } = await state()
    assert.deepEqual([priority, delay_seconds], [99, 700])

    // A number that is none is not sent.
    await release.getByLabel('Priority').fill('-1')
    await release.getByRole('button').click()
    assert.equal((await state()).priority, 99)

    await view.button('Delete').click()
    await view.shows('dialog h2', `Delete job ${id}?`)
    await view.page.keyboard.press('Escape')
    assert.equal((await state()).id, id)
    await view.button('Delete').click()
    await view.page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click()
    assert.equal((await state()).id, id)
    await view.button('Delete').click()
    await view.page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await view.notice(new RegExp(`^Job ${id} is deleted`))
    await view.page.getByText('The job has been deleted').waitFor()
    assert.equal((await state()).error, 'not-found')
  })
}

async function jobs_of_a_tube_are_moved() {
  await withConsole({ expected: [/409/] }, async (view, server, client) => {
    for (let job = 0; job < 5; job += 1) await client.put('mail', 'x', { delay: 1000 })
    await client.put('mail', 'x')
    await view.go('#/tubes/mail')
    await view.shows('.tile.delayed .tile-value', '5')
    const dialog = view.page.getByRole('dialog')
    await view.button('Move jobs').click()
    await view.shows('dialog h2', 'Move jobs of the tube mail')
    assert.equal(await dialog.getByLabel('Maximum number of jobs').inputValue(), '1')
    // The count is that of the state.
    await dialog.getByLabel('State').selectOption('delayed')
    assert.equal(await dialog.getByLabel('Maximum number of jobs').inputValue(), '5')
    await dialog.getByRole('button', { name: 'Move' }).click()
    assert.equal(await dialog.getByLabel('To tube').evaluate((input) => input.validity.valid), false)
    await dialog.getByLabel('To tube').fill('mail')
    await dialog.getByRole('button', { name: 'Move' }).click()
    await dialog.getByRole('alert').getByText('The jobs are in this tube: name another tube.').waitFor()
    assert.equal(await view.page.locator('.notice').count(), 0)
    assert.equal(await dialog.getByLabel('To tube').inputValue(), 'mail')
    await dialog.getByRole('button', { name: 'Cancel' }).click()
    assert.equal((await server.api('tubes/mail')).delayed, 5)
    await view.button('Move jobs').click()
    await dialog.getByLabel('State').selectOption('delayed')
    await dialog.getByLabel('Maximum number of jobs').fill('3')
    await dialog.getByLabel('To tube').fill('later')
    await view.page.keyboard.press('Enter')
    await view.notice(/^Moved 3 jobs to later\.$/)
    await view.shows('.tile.delayed .tile-value', '2')
    assert.equal((await server.api('tubes/later')).delayed, 3)
  })
}

async function a_move_that_stops_says_why() {
  await withConsole({ expected: [/507/] }, async (view, server, client) => {
    for (let job = 0; job < 5; job += 1) await client.put('mail', 'x')
    await client.ask('tube-config full max-jobs 2')
    await view.go('#/tubes/mail')
    await view.shows('.tile.ready .tile-value', '5')
    const move = async () => {
      await view.button('Move jobs').click()
      await view.page.getByRole('dialog').getByLabel('To tube').fill('full')
      await view.page.keyboard.press('Enter')
    }
    await move()
    await view.notice(/^Moved 2 jobs to full\. The move stopped at job 3: [^.]*\bfull\b[^.]*\.$/)
    // It is no success: the notice stays.
    assert.equal(await view.page.locator('.notice.error').count(), 1)
    await view.shows('.tile.ready .tile-value', '3')
    await move()
    await view.shows('dialog .problem', /^Stopped at job 3: [^.]*\bfull\b[^.]*\.$/)
    assert.equal(await view.page.locator('dialog .problem').count(), 1)
    await view.page.keyboard.press('Escape')
    assert.ok(!(await view.page.locator('.notice').allInnerTexts()).some((text) => text.includes('Moved')))
    assert.equal((await server.api('tubes/mail')).ready, 3)
  })
}

async function a_job_is_moved() {
  await withConsole({ expected: [/409/] }, async (view, server, client) => {
    const id = await client.put('mail', 'x', { priority: 7 })
    await view.go(`#/jobs/${id}`)
    const move = view.page.getByRole('form', { name: 'Move the job' })
    await move.getByLabel('To tube').fill('mail')
    await move.getByRole('button').click()
    await view.shows('.field .problem', /^The job is in this tube/)
    await move.getByLabel('To tube').fill('later')
    await move.getByRole('button').click()
    await view.notice(new RegExp(`^Job ${id} is in the tube later\\.$`))
    await view.shows('.crumbs', /later$/)
    const { tube, state, priority } = await server.api(`jobs/${id}`)
    assert.deepEqual([tube, state, priority], ['later', 'ready', 7])
  })
}

async function a_job_is_put_with_tags() {
  await withConsole({ hash: '#/put', expected: [/409/] }, async (view, server) => {
    const label = (name) => view.page.getByLabel(name, { exact: true })
    await view.page.getByText('Tags', { exact: true }).click()
    await label('Idempotency key').fill('order/7')
    await label('TTL of the key in seconds').fill('60')
    await label('Concurrency key').fill('user-7')
    await label('Limit of the key in jobs').fill('2')
    await label('Group').fill('parts')
    await view.button('Put').click()
    await view.shows('.result', /^Put job \d+ into default\.$/)
    // The same again is the same job, and more urgent.
    await label('Priority').fill('5')
    await view.button('Put').click()
    await view.shows('.result', /^No new job: job \d+ has this idempotency key\. It is ready, and its priority is now 5\.$/)
    await view.page.locator('.result a').click()
    await view.shows(view.fact('idp'), 'order/7, kept for 60 s (1 min) after the job is deleted')
    await view.shows(view.fact('con'), 'user-7, at most 2 jobs reserved at a time')
    await view.shows(view.fact('grp'), 'parts')
    assert.equal((await server.api('server')).totals.puts, 1)
    await view.go('#/put')
    await view.page.getByText('Tags', { exact: true }).click()
    await label('Group').fill('parts')
    await label('After group').fill('parts')
    await view.button('Put').click()
    await view.notice(/A job cannot wait for its own group/)
    // A name that is none is not sent, and is seen.
    await label('After group').fill('a b')
    await view.page.getByText('Tags', { exact: true }).click()
    await view.button('Put').click()
    assert.ok(await label('After group').isVisible())
    assert.equal((await server.api('server')).totals.puts, 1)
  })
}

async function a_question_ends_with_its_page() {
  await withConsole({}, async (view, server, client) => {
    const id = await client.put('mail', 'x')
    await view.go('#/tubes/mail')
    await view.shows('h1', 'Tube mail')
    await view.go(`#/jobs/${id}`)
    await view.button('Delete').click()
    await view.shows('dialog p', 'This cannot be undone.')
    await view.page.goBack()
    await view.shows('h1', 'Tube mail')
    assert.equal(await view.page.getByRole('dialog').count(), 0)
    // The page can be used, which an open dialog prevents.
    await view.button('Kick').click()
    await view.notice(/^Kicked 0 jobs/)
    assert.equal((await server.api(`jobs/${id}`)).state, 'ready')
  })
}

async function a_reserved_job_belongs_to_its_client() {
  await withConsole({ expected: [/409/] }, async (view, _, client) => {
    const id = await client.put('mail', 'x')
    await view.go(`#/jobs/${id}`)
    await view.shows('h1', `Job ${id} ready`)
    // A worker reserves it after the question was asked, and before it is answered.
    await view.button('Delete').click()
    await client.reserve('mail')
    await view.page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await view.page.locator('.notice.error').waitFor()
    await view.shows('h1', `Job ${id} reserved`)
    for (const name of ['Release', 'Bury', 'Delete']) assert.ok(await view.button(name).isDisabled(), name)
    await view.page.getByText(/Its TTR ends in (10 min|9 min \d+ s)\. Only that client can/).waitFor()
    await view.shows(view.fact('reserved'), /min|s$/)
    await client.ask(`release ${id} 1 0`)
    await view.shows('h1', `Job ${id} ready`)
    await until('the buttons work again', async () => !(await view.button('Delete').isDisabled()))
    assert.equal(await view.page.locator('.notice.error').count(), 1)
    await view.go('#/tubes')
    await view.shows('h1', 'Tubes')
    assert.equal(await view.page.locator('.notice.error').count(), 0)
  })
}

async function a_job_is_put() {
  await withConsole({ hash: '#/put' }, async (view, server) => {
    await view.page.getByLabel('Tube', { exact: true }).fill('from/a+form')
    await view.page.getByLabel('Priority').fill('5')
    await view.page.getByLabel('Delay in seconds').fill('300')
    await view.page.getByLabel('TTR in seconds').fill('33')
    await view.page.getByLabel('Body', { exact: true }).fill('Zwölf Boxkämpfer\n"jagen"')
    await view.button('Put').click()
    await view.shows('.result', /^Put job \d+ into from\/a\+form\.$/)
    await view.page.locator('.result a').first().click()
    await view.shows('h1', /^Job \d+ delayed$/)
    await view.shows(view.fact('priority'), '5 (urgent)')
    await view.shows(view.fact('ttr'), '33 s')
    await view.shows('pre.body', 'Zwölf Boxkämpfer\n"jagen"')
    // A file, byte for byte.
    const file = path.join(server.directory, 'body')
    const bytes = Buffer.from(Array.from({ length: 512 }, (_, index) => index % 256))
    fs.writeFileSync(file, bytes)
    await view.go('#/put?tube=files')
    assert.equal(await view.page.getByLabel('Tube', { exact: true }).inputValue(), 'files')
    await view.page.getByLabel('Or the content of a file').setInputFiles(file)
    await view.button('Put').click()
    await view.shows('.result', /into files/)
    assert.equal(await view.page.getByLabel('Or the content of a file').inputValue(), '')
    assert.ok(await view.page.getByLabel('Body', { exact: true }).isEnabled())
    assert.ok(await view.button('Remove the file').isHidden())
    const { id } = await server.api('tubes/files/next/ready')
    const body = await fetch(`${server.url}api/v1/jobs/${id}/body`)
    assert.deepEqual(Buffer.from(await body.arrayBuffer()), bytes)
  })
}

async function a_put_that_cannot_be_is_explained() {
  await withConsole({ hash: '#/put', expected: [/503/] }, async (view, server) => {
    const puts = async () => (await server.api('server')).totals.puts
    const tube = view.page.getByLabel('Tube', { exact: true })
    for (const name of ['-x', 'a b', '', 'ä', '%41']) {
      await tube.fill(name)
      await view.button('Put').click()
      assert.equal(await tube.evaluate((input) => input.validity.valid), false, name)
    }
    await tube.fill('ok')
    await view.page.getByLabel('Body', { exact: true }).fill('x'.repeat(65536))
    await view.button('Put').click()
    await view.notice(/has 65,536 bytes\. The maximum job size is 65,535 bytes/)
    await view.page.getByText('Maximum job size: 65,535 bytes.').waitFor()
    assert.equal(await puts(), 0)
    // The line about an earlier put goes, whether this page or the browser refuses the next one.
    const body = view.page.getByLabel('Body', { exact: true })
    for (const refuse of [() => body.fill('x'.repeat(65536)), () => tube.fill('-x')]) {
      await tube.fill('ok')
      await body.fill('x')
      await view.button('Put').click()
      await view.shows('.result', /into ok/)
      await refuse()
      await view.button('Put').click()
      await view.shows('.result', '')
    }
    assert.equal(await puts(), 2)
  })
}

async function rules_of_a_tube_are_set_and_removed() {
  await withConsole({}, async (view, server, client) => {
    await client.put('mail', 'x')
    await view.go('#/tubes/mail')
    const card = view.page.getByRole('region', { name: 'Rules' })
    await card.getByText('This tube has no rules.').waitFor()
    const set = async (rule, label, value) => {
      await card.getByLabel('Rule', { exact: true }).selectOption(rule)
      await card.getByLabel(label, { exact: true }).fill(value)
      await view.button('Set the rule').click()
    }
    for (const [rule, label, value, key, shown] of [
      ['Maximum attempts', 'Attempts', '3', 'max-attempts', '3'],
      ['Dead-letter tube', 'Name of another tube', 'mail/dead', 'dead-letter', 'mail/dead'],
      ['Maximum jobs', 'Jobs', '5000', 'max-jobs', '5,000'],
      ['Maximum bytes', 'Bytes', '1048576', 'max-bytes', '1 MiB'],
      ['Default TTR', 'Seconds', '90', 'default-ttr', '90 s (1 min 30 s)'],
      ['Retention', 'Seconds', '86400', 'retention', '86,400 s (1 d)'],
      ['Rate', 'Jobs per second', '20', 'rate', '20 per second'],
    ]) {
      await set(rule, label, value)
      await view.notice(new RegExp(`^The rule is set: ${rule}, `))
      await view.shows(view.fact(key), `${shown}\nRemove`)
      const { rules } = await server.api('tubes/mail')
      assert.equal(String(rules[key]), value)
    }
    assert.ok(await card.getByText('This tube has no rules.').isHidden())
    // What the browser refuses is not sent.
    for (const [rule, label, value] of [
      ['Rate', 'Jobs per second', '0'],
      ['Rate', 'Jobs per second', '1000001'],
      ['Rate', 'Jobs per second', '1.5'],
      ['Maximum jobs', 'Jobs', '4294967296'],
      ['Dead-letter tube', 'Name of another tube', '0'],
      ['Dead-letter tube', 'Name of another tube', 'a b'],
      ['Dead-letter tube', 'Name of another tube', ''],
    ]) {
      await set(rule, label, value)
      const field = card.getByLabel(label, { exact: true })
      assert.equal(await field.evaluate((input) => input.validity.valid), false, `${rule}: ${value}`)
    }
    const { rules } = await server.api('tubes/mail')
    assert.deepEqual([rules.rate, rules['max-jobs'], rules['dead-letter']], [20, 5000, 'mail/dead'])
    await card.getByRole('link', { name: 'mail/dead' }).waitFor()
    for (const rule of ['Rate', 'Dead-letter tube']) {
      await view.button(`Remove the rule ${rule}`).click()
      await view.notice(new RegExp(`^The rule is removed: ${rule}\\.$`))
    }
    await until('two rules are gone', async () => (await card.getByRole('button', { name: /^Remove/ }).count()) === 5)
    // The button that had the focus is gone.
    assert.equal(await view.page.evaluate(() => document.activeElement.tagName), 'SELECT')
    assert.deepEqual(Object.keys((await server.api('tubes/mail')).rules).sort(), [
      'default-ttr',
      'max-attempts',
      'max-bytes',
      'max-jobs',
      'retention',
    ])
  })
}

async function a_refused_rule_is_explained_beside_its_field() {
  await withConsole({ expected: [/409/] }, async (view, server, client) => {
    await client.put('mail', 'x')
    await view.go('#/tubes/mail')
    await view.page.getByLabel('Rule', { exact: true }).selectOption('Dead-letter tube')
    const field = view.page.getByLabel('Name of another tube', { exact: true })
    const problem = view.page.locator('.field .problem')
    await field.fill('mail')
    await view.button('Set the rule').click()
    await view.shows('.field:has(input:focus) .problem, .field .problem', /own dead-letter tube/)
    const id = await problem.getAttribute('id')
    assert.ok((await field.getAttribute('aria-describedby')).split(' ').includes(id))
    assert.equal(await field.getAttribute('aria-invalid'), 'true')
    assert.equal(await view.page.locator('.notice').count(), 0)
    // It goes when the value changes, and when the rule is set.
    await field.fill('mail/')
    assert.equal(await problem.count(), 0)
    assert.equal(await field.getAttribute('aria-invalid'), null)
    await field.fill('mail')
    await view.button('Set the rule').click()
    await problem.waitFor()
    await field.fill('mail/dead')
    await view.button('Set the rule').click()
    await view.notice(/^The rule is set: Dead-letter tube, mail\/dead\.$/)
    assert.equal(await problem.count(), 0)
    assert.equal((await server.api('tubes/mail')).rules['dead-letter'], 'mail/dead')
  })
}

async function the_server_is_drained_and_undrained() {
  await withConsole({ expected: [/503/] }, async (view, server) => {
    await view.button('Drain').click()
    await view.page.getByRole('dialog').getByRole('button', { name: 'Drain' }).click()
    await view.page.locator('[data-banner="warning-draining"]').waitFor()
    await view.shows(view.fact('accepts'), 'refused: draining')
    assert.equal((await server.api('server')).draining, true)
    await view.go('#/put')
    await view.page.getByText('until it is undrained, on the overview').waitFor()
    assert.ok(await view.button('Put').isDisabled())
    await view.go('#/')
    await view.button('Undrain').click()
    await view.shows(view.fact('accepts'), 'accepted')
    await until('the banner goes', async () => (await view.page.locator('.banner').count()) === 0)
    assert.equal((await server.api('server')).draining, false)
  })
}

export const checks = {
  a_tube_is_paused_and_resumed,
  jobs_of_a_tube_are_kicked,
  what_was_listed_is_listed_again_after_an_action,
  the_unreserved_jobs_of_a_tube_are_deleted_after_a_question,
  the_next_jobs_of_a_tube_are_shown,
  the_jobs_of_a_tube_are_listed_page_by_page,
  a_job_is_kicked_released_buried_and_deleted,
  jobs_of_a_tube_are_moved,
  a_move_that_stops_says_why,
  a_job_is_moved,
  a_question_ends_with_its_page,
  a_reserved_job_belongs_to_its_client,
  a_job_is_put,
  a_job_is_put_with_tags,
  a_put_that_cannot_be_is_explained,
  the_server_is_drained_and_undrained,
  rules_of_a_tube_are_set_and_removed,
  a_refused_rule_is_explained_beside_its_field,
}
