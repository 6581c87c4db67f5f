-- What version 3 of the tables adds to version 2.
-- served: places up to this number are over.
ALTER TABLE {p}locks ADD COLUMN served INTEGER NOT NULL DEFAULT 0;

-- One row per waiter, its place, in the order of seq. It counts while its process sends
-- heartbeats.
CREATE TABLE IF NOT EXISTS {p}places (
	name  TEXT NOT NULL,
	seq   INTEGER NOT NULL,
	owner TEXT NOT NULL,
	proc  TEXT NOT NULL,
	mode  INTEGER NOT NULL,
	lim   INTEGER NOT NULL,
	wants INTEGER NOT NULL, -- TTL of the lease that it waits for
	note  TEXT NOT NULL,
	PRIMARY KEY (name, seq),
	UNIQUE (name, owner),
	UNIQUE (proc, name, seq)
) WITHOUT ROWID;

-- One row per process that waits. Its places count until ends.
CREATE TABLE IF NOT EXISTS {p}beats (
	proc   TEXT NOT NULL PRIMARY KEY,
	ends   INTEGER NOT NULL,
	number INTEGER NOT NULL -- of the heartbeat; the process remembers when it sent each
);

UPDATE {p}meta SET version = 3;
