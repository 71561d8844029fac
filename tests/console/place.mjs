// Where the reader is: the focus when a button goes, and the list of jobs in the address.

import assert from 'node:assert/strict'
import { until, withConsole } from './kit.mjs'

/** Presses a button with the keyboard. */
async function press({ page }, name) {
  await page.getByRole('button', { name, exact: true }).first().focus()
  await page.keyboard.press('Enter')
}

/** Waits until the focus is on what has this label, heading, text or id. */
const focused = ({ page }, expected) =>
  until(`the focus is on ${expected}`, () =>
    page.evaluate((text) => {
      const node = document.activeElement
      const label = node.getAttribute('aria-label') ?? node.labels?.[0]?.textContent
      return [label, node.querySelector('h2')?.textContent, node.textContent, node.id].includes(text)
    }, expected),
  )

async function a_button_of_a_tube_that_goes_passes_the_focus_on() {
  await withConsole({}, async (view, _, client) => {
    for (let job = 0; job < 60; job += 1) await client.put('mail', 'x', { delay: 4000 })
    await view.go('#/tubes/mail')
    await press(view, 'List delayed')
    await view.shows('.listed', '50 delayed jobs, from 1 to 50.')
    await press(view, 'Next page')
    await focused(view, 'First page')
    await view.page.keyboard.press('Enter')
    await focused(view, 'Next page')
    await press(view, 'Pause')
    await view.button('Resume').waitFor()
    await press(view, 'Resume')
    await focused(view, 'Pause')
  })
}

async function a_button_of_a_job_that_goes_passes_the_focus_on() {
  await withConsole({ expected: [/404/] }, async (view, _, client) => {
    await client.put('mail', 'x', { delay: 4000 })
    await view.go('#/jobs/1')
    await press(view, 'Kick')
    await view.shows('h1', 'Job 1 ready')
    await focused(view, 'Actions')
    await press(view, 'Delete')
    await view.page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await view.page.getByText('The job has been deleted').waitFor()
    await focused(view, 'content')
    await view.go('#/tubes/none')
    await view.button('Check again').focus()
    await client.put('none', 'x')
    await view.page.keyboard.press('Enter')
    await view.shows('.tile.ready .tile-value', '1')
    await focused(view, 'content')
  })
}

async function a_button_of_a_body_that_goes_passes_the_focus_on() {
  await withConsole({ server: { flags: ['--http-allow-writes', '-z', '400000'] } }, async (view, _, client) => {
    await view.go('#/put')
    await view.page.getByLabel('Or the content of a file').setInputFiles({ name: 'a', mimeType: 'text/plain', buffer: Buffer.from('a') })
    await press(view, 'Remove the file')
    await focused(view, 'Or the content of a file')
    const big = await client.put('mail', 'a'.repeat(300_000))
    await view.go(`#/jobs/${big}`)
    await view.button('Show the whole body').waitFor()
    await press(view, 'Show the whole body')
    await until('the whole body', async () => (await view.text('pre.body')).length === 300_000)
    await focused(view, 'Body')
  })
}

async function a_button_of_the_server_that_goes_passes_the_focus_on() {
  await withConsole({}, async (view) => {
    await view.go('#/')
    await press(view, 'Drain')
    await view.page.getByRole('dialog').getByRole('button', { name: 'Drain' }).click()
    await focused(view, 'Undrain')
    await view.page.keyboard.press('Enter')
    await view.button('Drain').waitFor()
    await focused(view, 'Drain')
    await press(view, 'Close the notice')
    await focused(view, 'content')
  })
}

async function the_address_keeps_the_list_of_jobs() {
  await withConsole({ expected: [/404/] }, async (view, _, client) => {
    for (let job = 0; job < 120; job += 1) await client.put('a/b', 'x')
    const hash = () => view.page.evaluate(() => location.hash)
    const second = '50 ready jobs, from 51 to 100.'
    await view.go('#/tubes/a%2Fb')
    await view.button('List ready').click()
    await view.shows('.listed', '50 ready jobs, from 1 to 50.')
    assert.equal(await hash(), '#/tubes/a%2Fb?state=ready')
    await view.button('Next page').click()
    await view.shows('.listed', second)
    assert.equal(await hash(), '#/tubes/a%2Fb?state=ready&after=50')
    await view.page.getByRole('link', { name: 'job 77', exact: true }).click()
    await view.shows('h1', 'Job 77 ready')
    await view.page.goBack()
    await view.shows('.listed', second)
    const isFocused = () => view.button('List ready').evaluate((node) => node === document.activeElement)
    await until('the list has the focus', isFocused)
    const top = await view.page.locator('.listed').evaluate((node) => node.getBoundingClientRect().top)
    assert.ok(top > 0 && top < 740, `the list is at ${top}`)
    await view.button('First page').click()
    await view.shows('.listed', '50 ready jobs, from 1 to 50.')
    assert.equal(await hash(), '#/tubes/a%2Fb?state=ready')
    // What the server does not have is not asked for.
    for (const query of ['state=none', 'state=ready&after=x', 'state=ready&after=-1']) {
      await view.go(`#/tubes/a%2Fb?${query}`)
      await view.shows('.listed', /^(Choose a state|50 ready jobs, from 1 to 50)/)
    }
    await view.go('#/tubes/a%2Fb?state=ready&after=500')
    await view.shows('.listed', 'There are no more ready jobs.')
    await view.button('First page').click()
    await view.shows('.listed', '50 ready jobs, from 1 to 50.')
  })
}

export const checks = {
  a_button_of_a_tube_that_goes_passes_the_focus_on,
  a_button_of_a_job_that_goes_passes_the_focus_on,
  a_button_of_a_body_that_goes_passes_the_focus_on,
  a_button_of_the_server_that_goes_passes_the_focus_on,
  the_address_keeps_the_list_of_jobs,
}
