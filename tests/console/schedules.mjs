// The pages of schedules.

import assert from 'node:assert/strict'
import { changeServer, until, withConsole } from './kit.mjs'

const row = (name) => `.job-rows tbody tr:has(th a:text-is("${name}"))`

/** Adds a schedule on the wire. */
async function add(client, name, tube, when) {
  client.send(`schedule-put ${name} 7 0 60 4 ${tube} ${when}\r\nwork\r\n`)
  assert.equal(await client.line(), 'SCHEDULED')
}

async function a_schedule_is_added_run_and_deleted() {
  await withConsole({ hash: '#/schedules', expected: [/400/, /404/] }, async (view, server) => {
    await view.shows('.empty:visible', 'There is no schedule that you may see.')
    const label = (text) => view.page.getByLabel(text, { exact: true })
    await label('Name').fill('night/../report')
    await label('Tube').fill('reports')
    await label('When').fill('0 3 30 2 *')
    await label('Body').fill('a body\nof two lines')
    await view.button('Add the schedule').click()
    await view.notice(/When is at no date of the next four years/)
    await label('When').fill('0 3 * * 1-5 Europe/Berlin')
    await label('While the last job exists').selectOption('Leave the run out')
    await label('Missed times').selectOption('Run each')
    await view.button('Add the schedule').click()
    await view.notice(/^The schedule night\/..\/report is added\.$/)
    // The same name again, with an empty body: this is asked first.
    await label('Body').fill('')
    await view.button('Add the schedule').click()
    await view.page.locator('dialog').getByRole('button', { name: 'Cancel' }).click()
    assert.equal((await server.api('schedules')).schedules[0].body_bytes, 19)
    await label('Body').fill('another body')
    await view.button('Add the schedule').click()
    await view.notice(/^The schedule night\/..\/report is replaced\.$/)
    await view.shows(`${row('night/../report')} td:nth-child(3)`, '0 3 * * 1-5 Europe/Berlin')
    await view.shows(`${row('night/../report')} td:nth-child(4)`, /^in \d/)
    await view.shows(`${row('night/../report')} td:nth-child(5)`, 'none')
    await view.page.locator(`${row('night/../report')} th a`).click()
    await view.shows('h1', 'Schedule night/../report')
    await view.shows(view.fact('when'), '0 3 * * 1-5 Europe/Berlin')
    await view.shows(view.fact('overlap'), 'the run is left out')
    await view.shows(view.fact('missed'), 'each runs')
    await view.shows(view.fact('origin'), 'a client')
    await view.button('Run now').click()
    await view.shows('.result', 'Put job 1.')
    await view.shows(view.fact('job'), 'job 1')
    await view.shows(view.fact('runs'), '1')
    assert.equal((await server.api('jobs/1')).tube, 'reports')
    await view.go('#/schedules')
    await view.shows(`${row('night/../report')} td:nth-child(6)`, 'job 1')
    assert.equal(await view.page.locator(`${row('night/../report')} td:nth-child(6) a`).getAttribute('href'), '#/jobs/1')
    await view.page.locator(`${row('night/../report')} th a`).click()
    await view.button('Delete').click()
    await view.page.locator('dialog').getByRole('button', { name: 'Cancel' }).click()
    assert.equal((await server.api('schedules')).schedules.length, 1)
    await view.button('Delete').click()
    view.faults = []
    await view.page.locator('dialog').getByRole('button', { name: 'Delete' }).click()
    await view.notice(/is deleted/)
    await view.shows('.empty-state:visible p', 'There is no schedule of this name.')
    view.faults = view.faults.filter((fault) => !fault.includes('404'))
    assert.equal((await server.api('jobs/1')).state, 'ready')
  })
}

async function the_list_of_schedules_has_pages() {
  await withConsole({ hash: '#/schedules' }, async (view, _, client) => {
    for (let number = 100; number < 220; number += 1) await add(client, `s${number}`, 'mail', 'every:1h')
    const shown = () => view.page.locator('.job-rows tbody th').allInnerTexts()
    const shows = (first, count) =>
      until(`the page from ${first}`, async () => {
        const names = await shown()
        return names[0] === first && names.length === count
      })
    await shows('s100', 50)
    await view.button('Next page').click()
    await shows('s150', 50)
    await view.button('Next page').click()
    await shows('s200', 20)
    assert.equal(await view.button('Next page').isVisible(), false)
    // The way back from a schedule leads to the same page.
    await view.page.locator(`${row('s205')} th a`).click()
    await view.shows('h1', 'Schedule s205')
    await view.page.goBack()
    await shows('s200', 20)
    await view.button('First page').click()
    await shows('s100', 50)
    // A link keeps the focus while the list is read again.
    await view.page.locator(`${row('s101')} th a`).focus()
    await client.ask('schedule-run s101')
    await view.shows(`${row('s101')} td:nth-child(6)`, 'job 1')
    assert.equal(await view.page.evaluate(() => document.activeElement.textContent), 's101')
  })
}

async function schedules_are_read_only_without_permission() {
  const before = (page) => changeServer(page, (server) => ({ ...server, may_write: false }))
  await withConsole({ hash: '#/schedules', before }, async (view, _, client) => {
    await add(client, 'tick', 'mail', 'every:1h')
    await view.shows(`${row('tick')} td:nth-child(3)`, 'every:1h')
    await view.page.getByText('Read-only').waitFor()
    assert.equal(await view.button('Add the schedule').isDisabled(), true)
    await view.go('#/schedules/tick')
    await view.shows(view.fact('when'), 'every:1h')
    assert.equal(await view.button('Run now').isDisabled(), true)
    assert.equal(await view.button('Delete').isDisabled(), true)
  })
}

async function a_name_that_no_schedule_can_have_is_not_asked_for() {
  await withConsole({ hash: '#/schedules/-a' }, async (view) => {
    await view.shows('h1', 'There is no such schedule')
    const { requests } = await view.watched()
    assert.ok(requests.every((request) => !request.includes('schedules')))
  })
}

export const checks = {
  a_schedule_is_added_run_and_deleted,
  the_list_of_schedules_has_pages,
  schedules_are_read_only_without_permission,
  a_name_that_no_schedule_can_have_is_not_asked_for,
}
