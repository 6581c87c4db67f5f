-- What version 3 of the tables has more than version 2. The first statement waits for
-- whoever else does the same; all may be repeated. It waits briefly, as all others wait
-- behind it: for somebody who has read the table in a transaction that goes on.
SET LOCAL lock_timeout = '500ms';
ALTER TABLE {p}locks
	ADD COLUMN IF NOT EXISTS tail   bigint NOT NULL DEFAULT 0, -- last number given to a place, from the clock
	ADD COLUMN IF NOT EXISTS served bigint NOT NULL DEFAULT 0; -- places up to it are over

-- One row per waiter, in order of its number. It counts while its process beats.
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

-- One row per process that waits: its places count until ends.
CREATE TABLE IF NOT EXISTS {p}beats (
	proc   text COLLATE "C" PRIMARY KEY,
	ends   bigint NOT NULL,
	number bigint NOT NULL -- of the beat, by which the process knows when it sent it
) WITH (fillfactor = 50);

UPDATE {p}meta SET version = 3 WHERE version = 2;
