// What the pages show of a server.

import assert from 'node:assert/strict'
import { changeServer, Console, PHONE, sleep, until, WIDE, withConsole } from './kit.mjs'

/** Puts a job with no body into each tube. */
async function putEach(client, tubes) {
  for (let begin = 0; begin < tubes.length; begin += 500) {
    const part = tubes.slice(begin, begin + 500)
    client.send(part.map((tube) => `use ${tube}\r\nput 1024 0 60 0\r\n\r\n`).join(''))
    for (let line = 0; line < 2 * part.length; line += 1) await client.line()
  }
}

const names = (count) => Array.from({ length: count }, (_, index) => `tube-${String(index).padStart(5, '0')}`)

async function the_overview_shows_the_server() {
  await withConsole(
    { server: { wal: true, flags: ['--http-allow-writes', '--max-memory', '64m'] } },
    async (view, server, client) => {
      await client.put('mail', 'one')
      await client.put('mail', 'two', { delay: 500 })
      await client.put('mail', 'three', { priority: 5 })
      await client.reserve('mail')
      await view.shows('.tile.ready .tile-value', '1')
      await view.shows('.tile.reserved .tile-value', '1')
      await view.shows('.tile.delayed .tile-value', '1')
      await view.shows('.tile.buried .tile-value', '0')
      const state = await server.api('server')
      await view.shows(view.fact('version'), state.version)
      await view.shows(view.fact('driver'), state.driver)
      await view.shows(view.fact('pid'), String(server.child.pid))
      await view.shows(view.fact('limit'), '64.0 MiB')
      await view.page.getByText('Counted against the limit', { exact: true }).waitFor()
      await view.page.getByText('can exceed the RSS').waitFor()
      await view.shows(view.fact('puts'), '3')
      await view.shows(view.fact('directory'), server.wal)
      await view.shows(view.fact('sync'), 'before each reply')
      await view.shows(view.fact('stalled'), 'OK')
      await view.shows('#connection-text', 'Live')
      assert.equal(await view.page.locator('.chart canvas').count(), 2)
      assert.equal(await view.page.title(), 'Overview – beanring')
    },
  )
}

async function the_overview_without_a_job_log_says_so() {
  await withConsole({}, async (view) => {
    await view.shows('text=There is no job log', /-b DIR/)
    await view.shows(view.fact('limit'), /none|iB/)
  })
}

async function charts_follow_the_load() {
  await withConsole({}, async (view, _, client) => {
    let isLoaded = true
    const load = (async () => {
      while (isLoaded) {
        await client.put('busy', 'x')
        await sleep(5)
      }
    })()
    await view.shows('.legend li:has-text("Puts") .value', /^[0-9]{2,}(\.[0-9])?$/)
    await sleep(3000)
    // The line of the puts, in its own color, above the axis.
    const drawn = await view.page
      .locator('.chart canvas')
      .first()
      .evaluate((canvas) => {
        const [red, green, blue] = [0x0a, 0x66, 0xc2]
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height * 0.7)
        let pixels = 0
        for (let at = 0; at < data.length; at += 4) {
          if (data[at] === red && data[at + 1] === green && data[at + 2] === blue) pixels += 1
        }
        return pixels
      })
    assert.ok(drawn > 20, `the line has ${drawn} pixels`)
    // Under the pointer is the first sample, which has a time.
    const box = await view.page.locator('.u-over').first().boundingBox()
    await view.page.mouse.move(box.x + box.width * 0.1, box.y + box.height / 2)
    await view.shows('.chart .when', /^\d\d:\d\d:\d\d$/)
    await view.page.mouse.move(0, 0)
    await view.shows('.chart .when', 'now')
    isLoaded = false
    await load
    await view.shows('.legend li:has-text("Puts") .value', '0')
  })
}

async function warnings_are_shown() {
  const warnings = [
    { kind: 'memory-above-90-percent', text: 'Memory is above 90 % of the memory limit.' },
    { kind: 'disk-full', text: 'The disk of the job log is full.' },
    { kind: 'accept-paused', text: 'Accept is paused.' },
  ]
  let shown = warnings
  const before = (page) => changeServer(page, (server) => ({ ...server, warnings: shown }))
  await withConsole({ before }, async (view) => {
    for (const { text } of warnings) await view.page.getByText(text).first().waitFor()
    shown = [warnings[1]]
    await until('the others go', async () => (await view.page.locator('.banner').count()) === 1)
    assert.equal(await view.text('.banner p'), warnings[1].text)
  })
}

async function tubes_are_sorted_and_filtered() {
  await withConsole({ hash: '#/tubes' }, async (view, _, client) => {
    for (let job = 0; job < 3; job += 1) await client.put('many', 'x')
    await client.put('Mixed.Case', 'x', { delay: 100 })
    await client.put('few', 'x')
    const first = (column) => `.table-space .table-row:first-child .cell-${column}`
    await view.shows('.head .hint', '4 tubes')
    await view.shows(first('name'), 'Mixed.Case')
    await view.page.getByRole('button', { name: /^Ready/ }).click()
    await view.shows(first('name'), 'many')
    await view.shows(first('ready'), '3')
    assert.equal(
      await view.page.locator('[role=columnheader]:has-text("Ready")').first().getAttribute('aria-sort'),
      'descending',
    )
    await view.page.getByRole('button', { name: /^Ready/ }).click()
    await view.shows(first('ready'), '0')
    await view.page.keyboard.press('/')
    await view.page.keyboard.type('MIXED')
    await view.shows('.head .hint', '1 of 4 tubes')
    await view.shows(first('name'), 'Mixed.Case')
    await view.shows(first('delayed'), '1')
    await view.shows('.visually-hidden[role=status]', '1 of 4 tubes')
    // The list is the same after the way back.
    await view.page.getByRole('link', { name: 'Mixed.Case' }).click()
    await view.shows('h1', 'Tube Mixed.Case')
    await view.page.goBack()
    await view.shows('.head .hint', '1 of 4 tubes')
    assert.equal(await view.page.getByRole('searchbox').inputValue(), 'MIXED')
    await view.page.getByRole('searchbox').fill('no such tube')
    await view.shows('.empty', /No tube/)
  })
}

async function tubes_are_sorted_on_a_phone() {
  await withConsole({ hash: '#/tubes', viewport: PHONE }, async (view, _, client) => {
    await client.put('b', 'x')
    await client.put('a', 'x')
    await client.put('a', 'x')
    await view.shows('.table-space .table-row:first-child .cell-name', 'a')
    // A phone has no "/" to press.
    await view.page.getByPlaceholder('Part of a name', { exact: true }).waitFor()
    await view.page.getByLabel('Sort by').selectOption('ready')
    await view.shows('.table-space .table-row:first-child .cell-ready', /2$/)
    await view.button('Descending ▼').click()
    await view.shows('.table-space .table-row:first-child .cell-name', 'default')
    // A column that a phone lacks is shown in the row while the table is sorted by it.
    const shown = '.table-space .table-row:first-child .sorted'
    await view.page.getByLabel('Sort by').selectOption('puts')
    await view.shows(shown, 'Puts: 2')
    await view.page.getByLabel('Sort by').selectOption('held')
    await view.shows(shown, 'Held: 0')
    await view.page.getByLabel('Sort by').selectOption('oldest')
    await view.shows(shown, /^Oldest ready: [0-9]+ s$/)
    await view.page.getByLabel('Sort by').selectOption('buried')
    await view.shows(shown, '')
    await view.page.setViewportSize(WIDE)
    await view.page.getByRole('button', { name: /^Puts/ }).click()
    await view.shows('.table-space .table-row:first-child .cell-puts', '2')
    assert.equal(await view.page.locator(shown).isVisible(), false)
  })
}

async function ten_thousand_tubes_are_read_in_windows() {
  await withConsole({}, async (view, _, client) => {
    await putEach(client, names(10_000))
    await view.go('#/tubes')
    await view.shows('.head .hint', '10,001 tubes')
    const rows = view.page.locator('.table-space .table-row')
    assert.ok((await rows.count()) < 80, `${await rows.count()} rows exist`)
    const scroller = view.page.locator('.table-scroller')
    for (const [share, expected] of [
      [1, 'tube-09999'],
      [0.5, 'tube-05000'],
      [0, 'default'],
    ]) {
      await scroller.evaluate((node, to) => {
        node.scrollTop = to * node.scrollHeight
      }, share)
      await view.page.getByRole('link', { name: expected, exact: true }).waitFor()
    }
    // By keyboard to the end, and to a tube there.
    await scroller.focus()
    await view.page.keyboard.press('End')
    await view.page.getByRole('link', { name: 'tube-09999', exact: true }).waitFor()
    const limits = (await view.watched()).requests
      .filter((one) => one.includes('tubes?'))
      .map((one) => Number(/limit=(\d+)/.exec(one)[1]))
    assert.ok(Math.max(...limits) <= 100, `a window of ${Math.max(...limits)} rows`)
    // Tab walks along rows that did not exist when it began.
    await scroller.evaluate((node) => {
      node.scrollTop = 0
    })
    await view.page.getByRole('link', { name: 'default', exact: true }).focus()
    for (let step = 0; step < 60; step += 1) {
      await view.page.keyboard.press('Tab')
      await view.page.evaluate(
        () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))),
      )
    }
    await until('the focus is on a later row', () =>
      view.page.evaluate(() => document.activeElement.textContent === 'tube-00059'),
    )
  })
}

async function a_tube_shows_counts_and_times() {
  await withConsole({}, async (view, _, client) => {
    await client.put('mail', 'one')
    await client.put('mail', 'two', { priority: 3 })
    await client.put('mail', 'three', { delay: 1000 })
    const id = await client.reserve('mail')
    assert.equal(await client.ask(`bury ${id} 7`), 'BURIED')
    await view.go('#/tubes/mail')
    await view.shows('.tile.ready .tile-value', '1')
    await view.shows('.tile.delayed .tile-value', '1')
    await view.shows('.tile.buried .tile-value', '1')
    await view.shows(view.fact('puts'), '3')
    await view.shows(view.fact('watching'), '1')
    await view.shows(view.fact('using'), '1')
    await view.shows('.times tbody tr:first-child td', /µs|ms|s$/)
    assert.equal(await view.page.locator('.chart canvas').count(), 2)
    assert.equal(await view.page.title(), 'Tube mail – beanring')
    // The label says what is counted: commands, not the time that the tube was paused.
    assert.equal(await client.ask('pause-tube mail 0'), 'PAUSED')
    await view.shows(view.fact('pauses'), '1')
    await view.page.getByText('Pause commands', { exact: true }).waitFor()
    const rules = view.page.getByRole('region', { name: 'Rules' })
    assert.equal(await rules.locator('dt:visible').count(), 0)
    assert.equal(await client.ask('tube-config mail max-jobs 5000'), 'CONFIGURED')
    assert.equal(await client.ask('tube-config mail dead-letter mail/dead'), 'CONFIGURED')
    await view.shows(view.fact('max-jobs'), /^5,000/)
    await view.shows(view.fact('dead-letter'), /^mail\/dead/)
    assert.equal(await rules.getByRole('button', { name: /^Remove/ }).count(), 2)
  })
}

async function a_tube_shows_what_its_rules_have_led_to() {
  await withConsole({}, async (view, _, client) => {
    await client.put('mail', 'x')
    await view.go('#/tubes/mail')
    await view.page.getByText('This tube has no rules.').waitFor()
    assert.ok(await view.page.getByText('Refused commands').isHidden())
    for (const rule of ['max-jobs 1', 'max-attempts 1', 'dead-letter mail/dead'])
      assert.equal(await client.ask(`tube-config mail ${rule}`), 'CONFIGURED')
    for (let put = 0; put < 3; put += 1) {
      client.send('put 0 0 60 1\r\nx\r\n')
      assert.equal(await client.line(), 'OUT_OF_MEMORY')
    }
    const id = await client.reserve('mail')
    assert.equal(await client.ask(`release ${id} 0 0`), 'RELEASED')
    for (const [key, shown] of Object.entries({ refusals: '3', dead_letters: '1', expiries: '0', rate_waits: '0' }))
      await view.shows(view.fact(key), shown)
  })
}

async function the_legend_shows_each_line_as_it_is() {
  // What the charts draw, as they hand it to the library.
  const before = (page) =>
    page.addInitScript(() => {
      window.drawn = []
      let library
      Object.defineProperty(window, 'uPlot', {
        set: (value) => {
          library = value
        },
        get: () =>
          function (options, ...rest) {
            window.drawn.push(
              options.series.slice(1).map(({ stroke, dash, width }) => ({ stroke, dash: dash ?? [], width })),
            )
            return new library(options, ...rest)
          },
      })
    })
  for (const scheme of ['light', 'dark']) {
    await withConsole({ scheme, before, hash: '#/tubes' }, async (view, _, client) => {
      await client.put('parts', 'x', { tags: 'grp:parts' })
      await client.put('wholes', 'x', { tags: 'aft:parts' })
      for (const hash of ['#/', '#/tubes/wholes']) {
        await view.page.evaluate(() => {
          window.drawn = []
        })
        await view.go(hash)
        await view.shows('.legend li:has-text("Held") .value', '1')
        const { drawn, marks } = await view.page.evaluate(() => {
          const rgb = (color) => {
            const probe = document.createElement('i')
            probe.style.color = color
            document.body.append(probe)
            const text = getComputedStyle(probe).color
            probe.remove()
            return text
          }
          const lengths = (text) => (text === 'none' ? [] : text.split(', ').map(parseFloat))
          const ofMark = (line) => {
            const { stroke, strokeDasharray, strokeWidth } = getComputedStyle(line)
            return { stroke, dash: lengths(strokeDasharray), width: parseFloat(strokeWidth) }
          }
          const legends = [...document.querySelectorAll('.legend')]
          return {
            drawn: window.drawn.map((lines) => lines.map((line) => ({ ...line, stroke: rgb(line.stroke) }))),
            marks: legends.map((legend) => [...legend.querySelectorAll('line')].map(ofMark)),
          }
        })
        assert.equal(marks.length, 2)
        const sorted = (charts) => charts.map((lines) => JSON.stringify(lines)).sort()
        assert.deepEqual(sorted(marks), sorted(drawn))
        for (const lines of marks) {
          // No two lines differ by their color only, and a mark shows its dashes twice.
          assert.equal(new Set(lines.map(({ dash }) => dash.join())).size, lines.length)
          assert.equal(new Set(lines.map(({ stroke }) => stroke)).size, lines.length)
          for (const { dash } of lines) assert.ok(2 * dash.reduce((sum, one) => sum + one, 0) <= 30, dash.join())
        }
      }
    })
  }
}

async function fractions_of_a_second_are_shown() {
  const flags = ['--http-allow-writes', '--sub-second']
  await withConsole({ server: { flags } }, async (view, _, client) => {
    const id = await client.put('mail', 'x', { delay: '0.001', ttr: '1.5' })
    await view.go(`#/jobs/${id}`)
    await view.shows(view.fact('delay'), '0.001 s')
    await view.shows(view.fact('ttr'), '1.5 s')
  })
}

async function long_times_have_one_unit_and_a_gap() {
  const before = (page) =>
    page.route('**/api/v1/tubes/mail', async (route) => {
      const response = await route.fetch()
      const long = { p50_seconds: 76, p95_seconds: 156, p99_seconds: 86000 }
      const percentiles = { queue_time: long, reserved_time: { ...long, p99_seconds: 700_000 } }
      await route.fulfill({ response, json: { ...(await response.json()), percentiles } })
    })
  await withConsole({ hash: '#/put', before }, async (view, _, client) => {
    await client.put('mail', 'x')
    await view.go('#/tubes/mail')
    const row = (index) => view.page.locator(`.times tbody tr:nth-child(${index}) > *`)
    await view.shows('.times tbody td', '1.3 min')
    assert.deepEqual(await row(1).allInnerTexts(), ['Queue time', '1.3 min', '2.6 min', '24 h'])
    assert.deepEqual(await row(2).allInnerTexts(), ['Reserved time', '1.3 min', '2.6 min', '8.1 d'])
    // Between the texts, not between the cells.
    const gaps = await row(1).evaluateAll((cells) => {
      const boxes = cells.map((cell) => {
        const range = document.createRange()
        range.selectNodeContents(cell)
        return range.getBoundingClientRect()
      })
      return boxes.slice(1).map((box, index) => box.left - boxes[index].right)
    })
    assert.ok(Math.min(...gaps) >= 12, `gaps of ${gaps}`)
  })
}

async function a_tube_that_is_missing_is_explained() {
  await withConsole({ hash: '#/tubes/nowhere', expected: [/404/] }, async (view, _, client) => {
    await view.page.getByText('There is no such tube now').waitFor()
    await client.put('nowhere', 'x')
    await view.button('Check again').click()
    await view.shows('.tile.ready .tile-value', '1')
    await client.put('nowhere', 'x')
    await view.shows('.tile.ready .tile-value', '2')
  })
}

async function what_is_missing_is_looked_for_once() {
  await withConsole({ expected: [/404/] }, async (view, _, client) => {
    const id = await client.put('mail', 'x')
    const asked = async () => (await view.watched()).requests.length
    for (const [hash, text] of [
      ['#/tubes/nowhere', 'There is no such tube now'],
      ['#/jobs/999', 'There is no job with this id'],
    ]) {
      await view.go(hash)
      await view.page.getByText(text).waitFor()
      await view.shows('#connection-text', 'Not updated')
      const before = await asked()
      await sleep(4500)
      assert.equal(await asked(), before)
      await view.button('Check again').click()
      await until('it is looked for again', async () => (await asked()) === before + 2)
    }
    await view.go(`#/jobs/${id}`)
    await view.shows('h1', `Job ${id} ready`)
    await client.ask(`delete ${id}`)
    await view.page.getByText('The job has been deleted').waitFor()
    await view.shows('#connection-text', 'Not updated')
    await view.go('#/tubes')
    await view.shows('#connection-text', 'Live')
  })
}

async function the_way_back_leads_to_the_same_rows() {
  await withConsole({}, async (view, _, client) => {
    await putEach(client, names(10_000))
    await view.go('#/tubes')
    const scroller = view.page.locator('.table-scroller')
    const link = (name) => view.page.getByRole('link', { name, exact: true })
    await link('default').waitFor()
    await scroller.evaluate((node) => {
      node.scrollTop = 200_000
    })
    await link('tube-05405').click()
    await view.shows('h1', 'Tube tube-05405')
    await view.page.goBack()
    await link('tube-05405').waitFor()
    assert.equal(await scroller.evaluate((node) => node.scrollTop), 200_000)
    // The rows are read at once, and not the first ones before them.
    const { requests } = await view.watched()
    const reads = requests.slice(requests.findLastIndex((one) => one.endsWith('tubes/tube-05405')))
    assert.ok(!reads.some((one) => one.includes('offset=0&')), reads.join())
    // A link leads to the first rows, and the way back from there to the others.
    await link('Overview').click()
    await view.shows('h1', 'Overview')
    await link('Tubes').click()
    await link('default').waitFor()
    assert.equal(await scroller.evaluate((node) => node.scrollTop), 0)
    await view.page.goBack()
    await view.shows('h1', 'Overview')
    await view.page.goBack()
    await link('tube-05405').waitFor()
  })
}

async function a_job_shows_its_values() {
  await withConsole({ expected: [/404/] }, async (view, _, client) => {
    const id = await client.put('mail', 'hello', { priority: 77, delay: 5000, ttr: 90 })
    await view.go('#/jobs')
    assert.equal(await view.page.title(), 'Find a job or a group – beanring')
    await view.page.getByLabel('Job id').fill(String(id))
    await view.button('Show the job').click()
    await view.shows('h1', `Job ${id} delayed`)
    await view.shows(view.fact('priority'), '77 (urgent)')
    await view.shows(view.fact('ttr'), '1 min 30 s')
    await view.shows(view.fact('delay'), '1 h 23 min')
    await view.shows(view.fact('delayed'), /^1 h 2[23] min$/)
    await view.shows(view.fact('size'), '5 B')
    await view.shows('pre.body', 'hello')
    await view.go('#/jobs/9999999')
    await view.page.getByText('There is no job with this id').waitFor()
    await view.go('#/nothing/here')
    await view.shows('h1', 'There is no such page')
    await view.go('#/tubes/%')
    await view.shows('h1', 'There is no such page')
  })
}

async function held_jobs_and_groups_are_shown() {
  await withConsole({ expected: [/404/] }, async (view, server, client) => {
    const part = await client.put('parts', 'x', { tags: 'grp:parts' })
    assert.ok(await view.page.locator('.tile.held').isHidden())
    assert.ok(await view.page.locator('.legend li:has-text("Held")').isHidden())
    const held = await client.put('wholes', 'x', { tags: 'grp:wholes aft:parts' })
    await view.shows('.tile.held .tile-value', '1')
    await view.go('#/tubes?sort=held&order=desc')
    await view.shows('.table-space .table-row:first-child .cell-held', '1')
    await view.go('#/tubes/wholes')
    await view.shows('.tile.held .tile-value', '1')
    await view.shows('.legend li:has-text("Held") .value', '1')
    await view.button('List held').click()
    await view.shows('.listed', `1 held job, from ${held} to ${held}.`)
    await view.page.locator('.job-rows').getByRole('link').click()
    await view.shows('h1', `Job ${held} held`)
    for (const name of ['Release', 'Bury']) assert.ok(await view.button(name).isDisabled(), name)
    for (const name of ['Kick', 'Move', 'Delete']) assert.ok(await view.button(name).isEnabled(), name)
    await view.shows(view.fact('waits'), 'parts')
    await view.page.getByRole('link', { name: 'parts', exact: true }).click()
    await view.shows('h1', 'Group parts')
    assert.equal(await view.page.title(), 'Group parts – beanring')
    assert.deepEqual(await view.page.locator('nav [aria-current]').allInnerTexts(), ['Jobs'])
    assert.equal(await view.page.locator('.crumbs a').getAttribute('href'), '#/jobs')
    await view.shows(view.fact('ready'), '1')
    await view.shows(view.fact('waiting'), '1')
    await view.shows(view.fact('ahead'), 'none')
    await view.go('#/groups/wholes')
    await view.shows(view.fact('held'), '1')
    await view.page.getByRole('link', { name: 'parts', exact: true }).click()
    await client.ask(`delete ${part}`)
    await view.page.getByText('There is no such group now').waitFor()
    await view.go(`#/jobs/${held}`)
    await view.shows('h1', `Job ${held} ready`)
    await view.shows(view.fact('aft'), 'parts')
    // A page that leads to groups, and on from one that does not exist.
    await view.go('#/groups')
    await view.shows('h1', 'Find a job or a group')
    await view.page.getByLabel('Group name').fill('no/such')
    await view.button('Show the group').click()
    await view.shows('h1', 'Group no/such')
    await view.page.getByText('There is no such group now').waitFor()
    await view.page.locator('.crumbs a').waitFor()
    await client.put('parts', 'x', { tags: 'grp:more' })
    await view.page.getByLabel('Group name').fill('more')
    await view.button('Show the group').click()
    await view.shows('h1', 'Group more')
    await view.shows(view.fact('ready'), '1')
    await view.go('#/groups/a%20b')
    await view.shows('h1', 'There is no such group')
    assert.equal((await server.api('server')).jobs.held, 0)
  })
}

async function an_address_that_cannot_exist_has_a_page_and_is_not_read() {
  await withConsole({ expected: [/404/] }, async (view) => {
    for (const [hash, title, link] of [
      ['#/tubes/a%20b', 'There is no such tube', 'Go to the tubes'],
      ['#/tubes/-a', 'There is no such tube', 'Go to the tubes'],
      [`#/tubes/${'a'.repeat(201)}`, 'There is no such tube', 'Go to the tubes'],
      ['#/jobs/99999999999999999999', 'There is no such job', 'Find a job'],
      ['#/jobs/18446744073709551616', 'There is no such job', 'Find a job'],
      ['#/jobs/-1', 'There is no such job', 'Find a job'],
      ['#/nothing', 'There is no such page', 'Go to the overview'],
    ]) {
      await view.go('#/put')
      await view.go(hash)
      await view.shows('h1', title)
      await view.page.getByRole('link', { name: link }).waitFor()
      await view.shows('#connection-text', 'Not updated')
      const { requests } = await view.watched()
      assert.ok(
        requests.every((request) => request.endsWith('/server')),
        requests.join(),
      )
    }
    const before = (await view.watched()).requests.length
    await sleep(5000)
    assert.equal((await view.watched()).requests.length, before)
    // The largest id that can exist is looked for.
    await view.go('#/jobs/18446744073709551615')
    await view.page.getByText('There is no job with this id').waitFor()
    // Neither is a filter refused that is longer than a name.
    await view.go(`#/tubes?filter=${'a'.repeat(300)}`)
    await view.shows('.head .hint', '0 of 1 tube')
  })
}

async function a_hidden_page_reads_nothing() {
  await withConsole({}, async (view) => {
    const hide = (isHidden) =>
      view.page.evaluate((value) => {
        Object.defineProperty(document, 'hidden', { value, configurable: true })
        document.dispatchEvent(new Event('visibilitychange'))
      }, isHidden)
    await view.shows('#connection-text', 'Live')
    await hide(true)
    const { requests } = await view.watched()
    await sleep(3000)
    assert.equal((await view.watched()).requests.length, requests.length)
    await hide(false)
    await until('it reads again', async () => (await view.watched()).requests.length > requests.length, 1000)
  })
}

async function it_can_be_used_with_the_keyboard() {
  await withConsole({}, async (view, _, client) => {
    await client.put('mail', 'x')
    const { page } = view
    await page.keyboard.press('Tab')
    assert.equal(await page.evaluate(() => document.activeElement.id), 'skip')
    const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle)
    assert.notEqual(outline, 'none')
    await page.keyboard.press('Enter')
    assert.equal(await page.evaluate(() => document.activeElement.id), 'content')
    // "/" leads to the filter of the tubes, also from another page.
    await page.keyboard.press('/')
    await view.shows('h1', 'Tubes')
    await page.keyboard.type('mai')
    await view.shows('.head .hint', '1 of 2 tubes')
    await page.keyboard.type('/')
    assert.equal(await page.getByRole('searchbox').inputValue(), 'mai/')
    await page.keyboard.press('Backspace')
    await page.getByRole('link', { name: 'mail' }).focus()
    await page.keyboard.press('Enter')
    await view.shows('h1', 'Tube mail')
    assert.equal(await page.evaluate(() => document.activeElement.id), 'content')
    await page.goBack()
    await page.goBack()
    await view.shows('h1', 'Overview')
  })
}

async function two_consoles_are_independent() {
  await withConsole({}, async (view, server, client) => {
    const other = await Console.open(server, '#/tubes')
    await client.put('mail', 'x')
    await view.shows('.tile.ready .tile-value', '1')
    await other.shows('.head .hint', '2 tubes')
    await other.close()
  })
}

export const checks = {
  the_overview_shows_the_server,
  the_overview_without_a_job_log_says_so,
  charts_follow_the_load,
  warnings_are_shown,
  tubes_are_sorted_and_filtered,
  tubes_are_sorted_on_a_phone,
  ten_thousand_tubes_are_read_in_windows,
  the_legend_shows_each_line_as_it_is,
  a_tube_shows_counts_and_times,
  a_tube_shows_what_its_rules_have_led_to,
  long_times_have_one_unit_and_a_gap,
  a_tube_that_is_missing_is_explained,
  what_is_missing_is_looked_for_once,
  the_way_back_leads_to_the_same_rows,
  a_job_shows_its_values,
  fractions_of_a_second_are_shown,
  held_jobs_and_groups_are_shown,
  an_address_that_cannot_exist_has_a_page_and_is_not_read,
  a_hidden_page_reads_nothing,
  it_can_be_used_with_the_keyboard,
  two_consoles_are_independent,
}
export { names, putEach }
