<?php
/*
 * A lease of `leasehold serve`, for PHP 8. PHP runs one thing at a time, so the section renews between its steps: check()
 * renews once a third of the TTL has passed, and throws when the lease is over. A step that takes longer than the TTL
 * loses the lease. PHP's clock stands still while the machine sleeps: do not use this on machines that do.
 *
 * With limit, others may hold it too: their weights and this one's are at most the limit together.
 *
 * With yields, wanted is true once others wait, as of the last renewal: release at a safe point.
 *
 *     require 'Lease.php';
 *     $lease = new Lease('http://127.0.0.1:7400', 'nightly-report', ttl: 30, wait: 5);
 *     try {
 *         foreach ($steps as $step) {
 *             $lease->check();
 *             $step($lease->token);
 *         }
 *     } finally {
 *         $lease->release();
 *     }
 */

final class Lease
{
    private float $deadline;
    private float $renewAt;
    private int $call = 0;
    public string $token; // of the grant, above 2^53
    public bool $wanted = false;

    public function __construct(private string $url, private string $name, private float $ttl, float $wait = 0, private ?string $owner = null, private bool $yields = false, private int $limit = 0, private int $weight = 1)
    {
        $this->owner = $owner ?? bin2hex(random_bytes(20));
        $end = self::now() + $wait;
        do {
            $sent = self::now();
            $left = max(0.0, min($end - $sent, 10.0));
            [$status, $answer] = $this->call('acquire', ['ttl_ms' => (int) ($ttl * 1000), 'wait_ms' => (int) ($left * 1000), 'queue' => $wait > 0] + $this->yields(), 5 + $left);
            if ($status !== 200) {
                usleep(100_000);
            }
        } while (($status === 409 || $status === 503) && self::now() < $end);
        if ($status !== 200) {
            $this->call('release', [], 1); // the place, or what was granted without an answer
            throw new RuntimeException($answer['error'] ?? 'no answer', $status);
        }
        $this->token = $answer['token'];
        $this->granted($sent + $answer['waited_ms'] / 1000, $answer);
    }

    public function __debugInfo(): array
    {
        return ['name' => $this->name, 'token' => $this->token ?? null, 'wanted' => $this->wanted]; // without the owner
    }

    private function yields(): array
    {
        return $this->yields ? ['wanted' => true] : [];
    }

    private function shared(): array
    {
        return $this->limit > 0 ? ['mode' => 'shared', 'limit' => $this->limit, 'weight' => $this->weight] : [];
    }

    /** Renews when it is time, and throws when the lease is over. */
    public function check(): void
    {
        if (self::now() >= $this->renewAt) {
            $sent = self::now();
            [$status, $answer] = $this->call('renew', ['ttl_ms' => (int) ($this->ttl * 1000)] + $this->yields(), max(0.01, min(5, $this->ttl / 6, $this->deadline - $sent)));
            if ($status === 410) {
                $this->deadline = 0;
            } elseif ($status === 200 && self::now() < $this->deadline) {
                $this->granted($sent, $answer);
            } else {
                $this->renewAt = $sent + ($this->deadline - $sent) / 4; // so that steps go on meanwhile
            }
        }
        if (self::now() >= $this->deadline) {
            throw new RuntimeException('lease lost', 410);
        }
    }

    /** Releases, and throws when the lease was over before, or may have been. */
    public function release(): void
    {
        $late = self::now() >= $this->deadline;
        [$status] = $this->call('release', [], 5);
        if ($status === 410 || $status !== 200 && $late) {
            throw new RuntimeException('lease lost', 410);
        }
    }

    private function granted(float $since, array $answer): void
    {
        $this->wanted = $this->wanted || ($answer['wanted'] ?? false);
        $ttl = min($this->ttl, $answer['ttl_ms'] / 1000); // it may be shorter than what was asked for
        $this->deadline = $since + $ttl * 0.99 - 0.002;
        $this->renewAt = $since + $ttl / 3;
    }

    /** The status, 503 where nothing answered, and the answer. */
    private function call(string $what, array $fields, float $timeout): array
    {
        $body = json_encode(['name' => $this->name, 'owner' => $this->owner, 'call' => ++$this->call] + $this->shared() + $fields, JSON_THROW_ON_ERROR);
        $context = stream_context_create(['http' => [
            'method' => 'POST', 'header' => 'Content-Type: application/json', 'content' => $body,
            'timeout' => $timeout, 'ignore_errors' => true, 'follow_location' => 0, 'protocol_version' => 1.1,
        ]]);
        $stream = @fopen("$this->url/v1/$what", 'r', false, $context);
        if ($stream === false || !preg_match('/^HTTP\S+ (\d+)/', stream_get_meta_data($stream)['wrapper_data'][0] ?? '', $found)) {
            return [503, []];
        }
        $answer = json_decode((string) @stream_get_contents($stream), true);
        $yes = is_array($answer) && ($what === 'release' ? ($answer['outcome'] ?? '') === 'done'
            : [$answer['outcome'] ?? '', $answer['name'] ?? '', $answer['owner'] ?? ''] === ['granted', $this->name, $this->owner]);
        if ($found[1] === '200' && !$yes) { // of something that stands between, or to another call
            return [503, []];
        }
        return [(int) $found[1], is_array($answer) ? $answer : []];
    }

    private static function now(): float
    {
        return hrtime(true) / 1e9;
    }
}
