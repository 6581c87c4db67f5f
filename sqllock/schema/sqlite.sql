-- Leasehold's tables on SQLite. {p} is Options.Prefix. Instants are milliseconds of the
-- database's clock since 1970; an instant in the past means free, gone or not in force.

-- One row per resource that was ever locked: its exclusive holder and its last fence.
-- It outlives the lock, so that fences grow.
CREATE TABLE {p}locks (
	name    TEXT PRIMARY KEY,
	fence   INTEGER NOT NULL,
	owner   TEXT NOT NULL,    -- '': held by nobody, or lingering until expires
	expires INTEGER NOT NULL,
	since   INTEGER NOT NULL,
	note    TEXT NOT NULL
) WITHOUT ROWID;

-- Shared holders and places in queues. A row exists only beside its row of locks.
CREATE TABLE {p}claims (
	name    TEXT NOT NULL,
	ticket  INTEGER NOT NULL, -- order of the first Try
	owner   TEXT NOT NULL,
	mode    INTEGER NOT NULL, -- 0 exclusive, 1 shared
	status  INTEGER NOT NULL, -- 0 waiting, 1 holding, 2 evicted (note has the reason), 3 lingering
	lim     INTEGER NOT NULL, -- most shared holders, 0: any number
	fence   INTEGER NOT NULL,
	expires INTEGER NOT NULL,
	since   INTEGER NOT NULL,
	note    TEXT NOT NULL,
	PRIMARY KEY (name, ticket)
) WITHOUT ROWID;

CREATE TABLE {p}meta (version INTEGER NOT NULL);
INSERT INTO {p}meta VALUES (1);
