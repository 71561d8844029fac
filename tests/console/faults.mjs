// A server that restarts, goes away, or is slow.

import assert from 'node:assert/strict'
import { sleep, until, withConsole } from './kit.mjs'

const BROKEN = [/ERR_CONNECTION|ERR_EMPTY_RESPONSE|ERR_FAILED|Failed to load resource/]

async function the_server_restarts_under_it() {
  await withConsole({ server: { wal: true }, expected: BROKEN }, async (view, server, client) => {
    for (let job = 0; job < 20; job += 1) await client.put('mail', 'kept')
    await view.shows(view.fact('puts'), '20')
    const rate = '.legend li:has-text("Puts") .value'
    await view.page.locator(rate).evaluate((node) => {
      window.rates = []
      new MutationObserver(() => window.rates.push(node.textContent)).observe(node, { childList: true })
    })
    const before = server.child.pid
    await server.end()
    await view.page.locator('[data-banner="gone"]').waitFor()
    await view.shows('#connection-text', /^(No reply, next try in \d+ s|Trying)$/)
    await server.launch()
    await view.shows('#connection-text', 'Live')
    await view.notice(/has restarted/)
    await view.shows(view.fact('pid'), String(server.child.pid))
    assert.notEqual(server.child.pid, before)
    await view.shows('.tile.ready .tile-value', '20')
    await view.shows(view.fact('puts'), '0')
    assert.equal(await view.page.locator('.banner').count(), 0)
    // The counters begin again at 0. That is no negative rate.
    await view.shows(rate, '0')
    const rates = await view.page.evaluate(() => window.rates)
    assert.ok(rates.length > 0)
    assert.deepEqual(
      rates.filter((text) => text.startsWith('-') || text === '<0.1'),
      [],
    )
  })
}

async function the_server_is_gone_and_comes_back() {
  await withConsole({ hash: '#/tubes', expected: BROKEN }, async (view, server) => {
    await view.shows('.head .hint', '1 tube')
    await server.end()
    await view.page.locator('[data-banner="gone"]').waitFor()
    // What was read stays, marked as old, and is asked for less and less often.
    assert.ok((await view.page.locator('main.stale').count()) === 1)
    await view.shows('.table-row .cell-name a', 'default')
    const from = (await view.watched()).requests.length
    await sleep(6000)
    const tries = (await view.watched()).requests.length - from
    assert.ok(tries >= 1 && tries <= 5, `${tries} tries in 6 s`)
    // Before the server is back: the console would find it by itself, and the button would go.
    const before = (await view.watched()).requests.length
    await view.button('Try now').click()
    await until('the console tries', async () => (await view.watched()).requests.length > before)
    await server.launch()
    await view.shows('#connection-text', 'Live')
    assert.equal(await view.page.locator('main.stale').count(), 0)
  })
}

async function a_server_that_hangs_stays_marked_as_old() {
  await withConsole({ expected: BROKEN }, async (view, server) => {
    await view.shows('#connection-text', 'Live')
    await server.end()
    await view.page.locator('[data-banner="gone"]').waitFor()
    // Now attempts get no answer at all.
    let hangs = true
    await view.page.route('**/api/v1/**', (route) => (hangs ? undefined : route.continue()))
    await view.button('Try now').click()
    await sleep(4000)
    assert.equal(await view.page.locator('[data-banner="gone"]').count(), 1)
    assert.equal(await view.page.locator('[data-banner="slow"]').count(), 0)
    assert.equal(await view.page.locator('main.stale').count(), 1)
    hangs = false
  })
}

async function a_slow_server_is_shown_as_slow() {
  await withConsole({}, async (view, server) => {
    await view.shows('#connection-text', 'Live')
    server.signal('SIGSTOP')
    await view.shows('#connection-text', 'Slow')
    await view.page.locator('[data-banner="slow"]').waitFor()
    const { requests } = await view.watched()
    await sleep(2000)
    assert.equal((await view.watched()).requests.length, requests.length, 'one request waits, and no other is sent')
    server.signal('SIGCONT')
    await view.shows('#connection-text', 'Live')
    await until('the banner goes', async () => (await view.page.locator('.banner').count()) === 0)
  })
}

async function an_action_on_a_server_that_is_gone_is_explained() {
  await withConsole({ expected: BROKEN }, async (view, server, client) => {
    await client.put('mail', 'x')
    await view.go('#/tubes/mail')
    await view.shows('.pause-state', 'Not paused.')
    await server.end()
    await view.button('Pause').click()
    await view.notice(/did not reply: .*may or may not have been carried out/)
  })
}

async function an_error_of_the_server_is_shown() {
  let isBroken = true
  const before = (page) =>
    page.route('**/api/v1/server', (route) =>
      isBroken
        ? route.fulfill({ status: 502, contentType: 'text/html', body: '<h1>Bad gateway</h1>' })
        : route.continue(),
    )
  await withConsole({ before, expected: [/502/] }, async (view) => {
    await view.page.getByText('The response was 502').waitFor()
    isBroken = false
    await view.shows('#connection-text', 'Live')
    await until('the banner goes', async () => (await view.page.locator('.banner').count()) === 0)
  })
}

async function a_page_that_cannot_be_loaded_says_so() {
  await withConsole({ expected: BROKEN }, async (view, server, client) => {
    const id = await client.put('mail', 'x')
    await view.shows('.tile.ready .tile-value', '1')
    await server.end()
    await view.page.locator('[data-banner="gone"]').waitFor()
    for (const hash of ['#/tubes', `#/jobs/${id}`, '#/tubes/mail']) {
      await view.go(hash)
      await view.shows('.not-loaded', 'Not loaded: the server does not reply.')
    }
    assert.ok(await view.button('Pause').isHidden())
    // What needs nothing new is shown as before.
    for (const hash of ['#/jobs', '#/put', '#/']) {
      await view.go(hash)
      await view.shows('#connection-text', /^No reply/)
      assert.equal(await view.page.locator('.not-loaded').count(), 0, hash)
    }
    await view.go('#/tubes')
    await view.page.locator('.not-loaded').waitFor()
    await server.launch()
    await view.button('Try now').click()
    await view.shows('.table-row .cell-name a', 'default')
    assert.equal(await view.page.locator('.not-loaded').count(), 0)
  })
}

async function a_page_that_a_proxy_answers_is_not_missing() {
  let isBroken = true
  const answer = { status: 404, contentType: 'text/html', body: '<h1>Not here</h1>' }
  const before = (page) =>
    page.route('**/api/v1/tubes/mail', (route) => (isBroken ? route.fulfill(answer) : route.continue()))
  await withConsole({ before, expected: [/404/] }, async (view, _, client) => {
    await client.put('mail', 'x')
    await view.go('#/tubes/mail')
    await view.page.getByText('The response was 404').waitFor()
    await view.shows('.not-loaded', 'Not loaded: the server has answered with an error.')
    assert.ok(await view.page.getByText('There is no such tube').isHidden())
    isBroken = false
    await view.shows('.tile.ready .tile-value', '1')
    assert.equal(await view.page.locator('.not-loaded').count(), 0)
  })
}

/** Has the readings whose path matches fail, until it is called with `null`. */
async function breaker(page) {
  let broken = null
  await page.route('**/api/v1/**', (route) =>
    broken?.test(route.request().url()) ? route.abort('connectionrefused') : route.continue(),
  )
  return (pattern) => {
    broken = pattern
  }
}

async function a_list_that_cannot_be_loaded_is_not_an_empty_one() {
  await withConsole({ expected: [...BROKEN, /404/] }, async (view, _, client) => {
    for (let job = 0; job < 60; job += 1) await client.put('mail', 'x')
    const fails = await breaker(view.page)
    const card = view.page.getByRole('region', { name: 'Jobs', exact: true })
    const failed = card.getByRole('alert')
    await view.go('#/tubes/mail')
    await view.shows('.tile.ready .tile-value', '60')
    fails(/mail\/jobs/)
    await view.button('List ready').click()
    const text = (what) => `${what} is not loaded. The server did not reply: the connection failed.`
    const says = (what) => failed.getByText(text(what), { exact: true }).waitFor()
    await says('The list of ready jobs')
    assert.ok(await card.getByText('There is no').isHidden())
    assert.equal(await view.page.locator('.notice').count(), 0)
    assert.equal(await view.page.locator('button[aria-pressed="true"]').count(), 0)
    fails(null)
    await card.getByRole('button', { name: 'Try again' }).click()
    await view.shows('.listed', '50 ready jobs, from 1 to 50.')
    assert.ok(await failed.isHidden())
    // The list that is there stays, with its state and its buttons.
    fails(/mail\/jobs/)
    for (const [button, what] of [['Next page', 'ready'], ['List buried', 'buried']]) {
      await view.button(button).click()
      await says(`The list of ${what} jobs`)
      await view.shows('.listed', '50 ready jobs, from 1 to 50.')
      assert.equal(await card.locator('tbody tr').count(), 50)
      assert.equal(await view.button('List ready').getAttribute('aria-pressed'), 'true')
      assert.ok(await view.button('Next page').isVisible())
    }
    fails(null)
    await view.button('Next page').click()
    await view.shows('.listed', '10 ready jobs, from 51 to 60.')
    assert.ok(await failed.isHidden())
    // A list that the address names.
    fails(/mail\/jobs/)
    await view.page.reload()
    await says('The list of ready jobs')
    fails(null)
    await card.getByRole('button', { name: 'Try again' }).click()
    await view.shows('.listed', '10 ready jobs, from 51 to 60.')
  })
}

async function a_job_that_cannot_be_loaded_is_not_missing() {
  const server = { flags: ['--http-allow-writes', '-z', '400000'] }
  await withConsole({ server, expected: [...BROKEN, /404/] }, async (view, _, client) => {
    const id = await client.put('mail', 'a'.repeat(300_000))
    const fails = await breaker(view.page)
    const failed = view.page.locator('.failed:visible')
    const again = () => view.page.getByRole('button', { name: 'Try again' }).click()
    await view.go('#/tubes/mail')
    for (const path of [/next\/ready/, /body/]) {
      fails(path)
      await view.page.reload()
      await view.button('Next ready').click()
      await failed.getByText('The next ready job is not loaded. The server did not reply').waitFor()
      await view.shows('.next', 'Choose a state to see its next job.')
    }
    fails(null)
    await again()
    await view.shows('.next-job', `Next ready job: job ${id}`)
    fails(/body$/)
    await view.button('Show the whole body').click()
    await failed.getByText('The whole body is not loaded.').waitFor()
    assert.equal(await view.page.locator('.notice').count(), 0)
    fails(null)
    await again()
    await until('the whole body', async () => (await view.text('pre.body')).length === 300_000)
    assert.equal(await failed.count(), 0)
    fails(/body$/)
    await view.button('Save to a file').click()
    await failed.getByText('The body is not saved.').waitFor()
    // The page of a job whose body alone cannot be loaded.
    fails(/body/)
    await view.go(`#/jobs/${id}`)
    await failed.getByText('The body is not loaded. The server did not reply: the connection failed.').waitFor()
    await view.shows('h1', `Job ${id} ready`)
    assert.ok(await view.button('Delete').isEnabled())
    assert.ok(await view.page.locator('pre.body').isHidden())
    fails(null)
    await again()
    await view.shows('.body-view .hint', /^The first 256 KiB of 300,000 bytes, text/)
    assert.equal(await failed.count(), 0)
  })
}

async function a_console_whose_files_do_not_arrive_says_so() {
  await withConsole({ expected: BROKEN }, async (view) => {
    await view.page.route('**/assets/body.js', (route) => route.abort())
    await view.page.reload()
    await view.shows('#loading', /^The console is not loaded: /)
  })
}

export const checks = {
  the_server_restarts_under_it,
  the_server_is_gone_and_comes_back,
  a_server_that_hangs_stays_marked_as_old,
  a_slow_server_is_shown_as_slow,
  an_action_on_a_server_that_is_gone_is_explained,
  an_error_of_the_server_is_shown,
  a_page_that_cannot_be_loaded_says_so,
  a_console_whose_files_do_not_arrive_says_so,
  a_page_that_a_proxy_answers_is_not_missing,
  a_list_that_cannot_be_loaded_is_not_an_empty_one,
  a_job_that_cannot_be_loaded_is_not_missing,
}
