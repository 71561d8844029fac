# The Ruby client beaneater, unmodified, through the whole life of a job.
#
# Usage: ruby beaneater_test.rb HOST:PORT

require 'beaneater'

ADDRESS = ARGV.fetch(0)
TESTS = {}

def check(name, &block)
  TESTS[name] = block
end

def connect(tube)
  client = Beaneater.new(ADDRESS)
  client.tubes.watch!(tube)
  [client, client.tubes[tube]]
end

def same(expected, got)
  raise "expected #{expected.inspect}, got #{got.inspect}" unless expected == got
end

def fails(error)
  got = yield
rescue error
  nil
else
  raise "no #{error}, but #{got.inspect}"
end

check 'put, reserve, delete' do |tube|
  client, mail = connect(tube)
  id = mail.put('hello', pri: 7, ttr: 30)[:id]
  job = client.tubes.reserve
  same [id, 'hello', true], [job.id, job.body, job.reserved?]
  stats = job.stats
  same [tube, 'reserved', 7, 30, 1], [stats.tube, stats.state, stats.pri, stats.ttr, stats.reserves]
  job.delete
  same nil, client.jobs.find(id)
end

check 'strings of statistics' do |tube|
  client, mail = connect(tube)
  same tube, mail.stats.name
  %w[version hostname os platform].each { |key| same String, client.stats[key].class }
  same tube, client.tubes.used.name if client.tubes.use(tube)
  same [tube], client.tubes.watched.map(&:name)
  same true, client.tubes.all.map(&:name).include?(tube)
end

check 'order by priority' do |tube|
  client, mail = connect(tube)
  [5, 1, 9, 1].each { |pri| mail.put(pri.to_s, pri: pri) }
  same %w[1 1 5 9], Array.new(4) { client.tubes.reserve(0).body }
end

check 'binary bodies' do |tube|
  client, mail = connect(tube)
  largest = client.stats.max_job_size
  every = (0..255).map(&:chr).join.b
  [''.b, every, "\r\n\r\n".b, (every * 256)[0, largest]].each do |body|
    mail.put(body)
    job = client.tubes.reserve(0)
    same body, job.body.b
    job.delete
  end
  fails(Beaneater::JobTooBigError) { mail.put('x' * (largest + 1)) }
end

check 'delay and peek' do |tube|
  client, mail = connect(tube)
  same [nil, nil, nil], %i[ready delayed buried].map { |state| mail.peek(state) }
  late = mail.put('late', delay: 1)[:id]
  soon = mail.put('soon')[:id]
  same [late, soon], [mail.peek(:delayed).id, mail.peek(:ready).id]
  client.jobs.find(soon).delete
  same late, client.tubes.reserve(10).id
end

check 'release, bury, kick' do |tube|
  client, mail = connect(tube)
  mail.put('x')
  client.tubes.reserve.release(pri: 3)
  job = client.tubes.reserve
  same 3, job.stats.pri
  job.release(delay: 100)
  same 'delayed', job.stats.state
  job.kick
  client.tubes.reserve.bury(pri: 4)
  same %w[1 0], Array.new(2) { mail.kick(10)[:id] }
  stats = job.stats
  same ['ready', 4, 2, 1, 2], [stats.state, stats.pri, stats.releases, stats.buries, stats.kicks]
end

check 'time-outs' do |tube|
  client, mail = connect(tube)
  fails(Beaneater::TimedOutError) { client.tubes.reserve(0) }
  fails(Beaneater::TimedOutError) { client.tubes.reserve(1) }
  mail.put('x', ttr: 2)
  job = client.tubes.reserve
  job.touch
  fails(Beaneater::DeadlineSoonError) { client.tubes.reserve }
  job.delete
end

check 'jobs of others' do |tube|
  client, mail = connect(tube)
  other, = connect(tube)
  id = mail.put('x')[:id]
  client.tubes.reserve
  fails(Beaneater::NotFoundError) { other.jobs.find(id).delete }
  client.close
  same id, other.tubes.reserve(10).id
end

check 'pause and clear' do |tube|
  client, mail = connect(tube)
  mail.put('x')
  mail.pause(1)
  same 1, mail.stats.pause
  fails(Beaneater::TimedOutError) { client.tubes.reserve(0) }
  client.tubes.reserve(10).release
  mail.clear
  same 0, mail.stats.current_jobs_ready
end

failed = 0
TESTS.each_with_index do |(name, block), number|
  block.call("beaneater-#{number}")
rescue StandardError => e
  failed += 1
  puts "#{name}: #{e.full_message(highlight: false)}"
end
puts "beaneater #{Beaneater::VERSION} over #{ADDRESS}: #{TESTS.size - failed} passed, #{failed} failed"
exit(failed.zero?)
