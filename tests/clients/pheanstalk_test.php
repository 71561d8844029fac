<?php
/**
 * The PHP client pheanstalk 4, unmodified, through the whole life of a job.
 *
 * Usage: php pheanstalk_test.php HOST:PORT | unix:PATH
 */

require 'Pheanstalk/autoload.php';

use Pheanstalk\Exception\{DeadlineSoonException, JobNotFoundException, JobTooBigException, ServerBadFormatException, ServerException};
use Pheanstalk\{JobId, Pheanstalk, SocketFactory};

function sockets(): SocketFactory
{
    global $argv;
    if (str_starts_with($argv[1], 'unix:')) {
        return new SocketFactory('unix://' . substr($argv[1], strlen('unix:')), -1, 10, SocketFactory::FSOCKOPEN);
    }
    [$host, $port] = explode(':', $argv[1]);
    return new SocketFactory($host, (int) $port);
}

function connect(string $tube): Pheanstalk
{
    return Pheanstalk::createWithFactory(sockets())->useTube($tube)->watchOnly($tube);
}

function same($expected, $got): void
{
    if ($expected !== $got) {
        throw new Exception('expected ' . var_export($expected, true) . ', got ' . var_export($got, true));
    }
}

function fails(string $exception, callable $call): void
{
    try {
        $got = $call();
    } catch (Throwable $error) {
        same($exception, get_class($error));
        return;
    }
    throw new Exception("no $exception, but " . var_export($got, true));
}

$tests = [
    'put, reserve, delete' => function (string $tube) {
        $client = connect($tube);
        $id = $client->put('hello', 7, 0, 30)->getId();
        $job = $client->reserve();
        same([$id, 'hello'], [$job->getId(), $job->getData()]);
        $stats = $client->statsJob($job);
        same(['reserved', '7', '30', '1'], [$stats->state, $stats->pri, $stats->ttr, $stats->reserves]);
        $client->delete($job);
        fails(ServerException::class, fn () => $client->statsJob($job));
    },
    'strings of statistics keep their quotes' => function (string $tube) {
        $client = connect($tube);
        $job = $client->put('x');
        same("\"$tube\"", $client->statsJob($job)['tube']);
        same("\"$tube\"", $client->statsTube($tube)['name']);
        foreach (['version', 'hostname', 'os', 'platform'] as $key) {
            same(1, preg_match('/^".*"$/', $client->stats()[$key]));
        }
        fails(ServerBadFormatException::class, fn () => $client->useTube($client->statsJob($job)['tube']));
        same(true, in_array($tube, $client->listTubes(), true));
        same([$tube, [$tube]], [$client->listTubeUsed(true), $client->listTubesWatched(true)]);
    },
    'order by priority' => function (string $tube) {
        $client = connect($tube);
        foreach ([5, 1, 9, 1] as $priority) {
            $client->put((string) $priority, $priority);
        }
        $order = array_map(fn () => $client->reserveWithTimeout(0)->getData(), range(1, 4));
        same(['1', '1', '5', '9'], $order);
    },
    'binary bodies' => function (string $tube) {
        $client = connect($tube);
        $largest = (int) $client->stats()['max-job-size'];
        $every = implode('', array_map('chr', range(0, 255)));
        foreach (['', $every, "\r\n\r\n", substr(str_repeat($every, 256), 0, $largest)] as $body) {
            $client->put($body);
            $job = $client->reserveWithTimeout(0);
            same($body, $job->getData());
            $client->delete($job);
        }
        fails(JobTooBigException::class, fn () => $client->put(str_repeat('x', $largest + 1)));
    },
    'delay and peek' => function (string $tube) {
        $client = connect($tube);
        same([null, null, null], [$client->peekReady(), $client->peekDelayed(), $client->peekBuried()]);
        $late = $client->put('late', 1024, 1);
        $soon = $client->put('soon');
        same($late->getId(), $client->peekDelayed()->getId());
        same($soon->getId(), $client->peekReady()->getId());
        same('late', $client->peek($late)->getData());
        $client->delete($soon);
        same($late->getId(), $client->reserveWithTimeout(10)->getId());
    },
    'release, bury, kick' => function (string $tube) {
        $client = connect($tube);
        $job = $client->put('x');
        $client->release($client->reserve(), 3, 0);
        same('3', $client->statsJob($job)->pri);
        $client->release($client->reserve(), 3, 100);
        same('delayed', $client->statsJob($job)->state);
        $client->kickJob($job);
        $client->bury($client->reserve(), 4);
        same($job->getId(), $client->peekBuried()->getId());
        same([1, 0], [$client->kick(10), $client->kick(10)]);
        $stats = $client->statsJob($job);
        same(['ready', '4', '2', '1', '2'], [$stats->state, $stats->pri, $stats->releases, $stats->buries, $stats->kicks]);
    },
    'time-outs' => function (string $tube) {
        $client = connect($tube);
        same([null, null], [$client->reserveWithTimeout(0), $client->reserveWithTimeout(1)]);
        $job = $client->put('x', 1024, 0, 2);
        $client->reserve();
        $client->touch($job);
        fails(DeadlineSoonException::class, fn () => $client->reserve());
        fails(DeadlineSoonException::class, fn () => $client->reserveWithTimeout(5));
        $client->delete($job);
    },
    'jobs of others' => function (string $tube) {
        [$client, $other] = [connect($tube), connect($tube)];
        $job = $client->put('x');
        $client->reserve();
        fails(JobNotFoundException::class, fn () => $other->delete($job));
        fails(JobNotFoundException::class, fn () => $other->release($job));
        fails(JobNotFoundException::class, fn () => $other->bury($job));
        fails(JobNotFoundException::class, fn () => $other->peek(new JobId(4294967295)));
    },
    'pause' => function (string $tube) {
        $client = connect($tube);
        $job = $client->put('x');
        $client->pauseTube($tube, 100);
        same('100', $client->statsTube($tube)['pause']);
        same(null, $client->reserveWithTimeout(0));
        $client->resumeTube($tube);
        same($job->getId(), $client->reserveWithTimeout(10)->getId());
    },
];

$failed = $number = 0;
foreach ($tests as $name => $test) {
    try {
        $test('pheanstalk-' . $number++);
    } catch (Throwable $error) {
        $failed++;
        echo "$name: $error\n";
    }
}
$passed = count($tests) - $failed;
echo "pheanstalk over $argv[1]: $passed passed, $failed failed\n";
exit($failed > 0 ? 1 : 0);
