-- What version 3 of the tables adds to version 2. All statements can be repeated. The first
-- waits for transactions that have used the table, and others wait behind it. So it waits
-- only briefly.
SET LOCAL lock_timeout = '500ms';
ALTER TABLE {p}locks
	ADD COLUMN IF NOT EXISTS tail   bigint NOT NULL DEFAULT 0, -- number of the last place; at least the time when it was taken
	ADD COLUMN IF NOT EXISTS served bigint NOT NULL DEFAULT 0; -- places up to this number are over

-- One row per waiter, its place, in the order of seq. It counts while its process sends
-- heartbeats.
CREATE TABLE IF NOT EXISTS {p}places (
	name  text COLLATE "C" NOT NULL,
	seq   bigint NOT NULL,
	owner text COLLATE "C" NOT NULL,
	proc  text COLLATE "C" NOT NULL,
	mode  integer NOT NULL,
	lim   bigint NOT NULL,
	wants bigint NOT NULL, -- TTL of the lease that it waits for
	note  text NOT NULL,
	PRIMARY KEY (name, seq),
	UNIQUE (name, owner),
	UNIQUE (proc, name, seq)
);

-- One row per process that waits. Its places count until ends.
CREATE TABLE IF NOT EXISTS {p}beats (
	proc   text COLLATE "C" PRIMARY KEY,
	ends   bigint NOT NULL,
	number bigint NOT NULL -- of the heartbeat; the process remembers when it sent each
) WITH (fillfactor = 50);

UPDATE {p}meta SET version = 3 WHERE version = 2;
