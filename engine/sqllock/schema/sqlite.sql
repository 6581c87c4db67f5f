-- Leasehold's tables on SQLite. {p} is Options.Prefix. Instants are microseconds of the
-- database's clock since 1970; an instant in the past means free, gone or not in force.

-- One row per resource. It outlives the lock, so that fences grow, by at least a day.
CREATE TABLE {p}locks (
	name    TEXT PRIMARY KEY,
	fence   INTEGER NOT NULL, -- last given
	raised  INTEGER NOT NULL DEFAULT 0, -- later fences are above it, too
	owner   TEXT NOT NULL,    -- exclusive holder, until expires; '': free, or it lingers
	expires INTEGER NOT NULL,
	since   INTEGER NOT NULL,
	note    TEXT NOT NULL,
	rev     INTEGER NOT NULL, -- grows with every change of the row, from the clock when it is made
	crowd   INTEGER NOT NULL, -- until then the record may have somebody who counts
	record  TEXT NOT NULL     -- JSON: places in the queue, shared holders, traces, in order
) WITHOUT ROWID;

-- What the resources of the caller's own transactions have seen: see Driver.CheckFence.
CREATE TABLE IF NOT EXISTS {p}fences (
	resource TEXT NOT NULL PRIMARY KEY,
	token    BIGINT NOT NULL,
	owner    TEXT NOT NULL,
	epoch    BIGINT NOT NULL DEFAULT 0
);

-- The clock has milliseconds: what was given in the present one is not known.
CREATE TABLE {p}meta (
	version INTEGER NOT NULL,
	lost    INTEGER NOT NULL -- greatest fence of a row that was deleted, by whomever
);
INSERT INTO {p}meta VALUES (2, cast(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 + 999);

CREATE TRIGGER {p}lost AFTER DELETE ON {p}locks
BEGIN UPDATE {p}meta SET lost = max(lost, OLD.fence, OLD.raised); END;
