-- Leasehold's tables on SQLite. {p} is Options.Prefix. Times are microseconds of the
-- database's clock since 1970. A time in the past means that whatever it ends is over.

-- One row per resource. It stays for at least a day after the last use, so that fences grow.
CREATE TABLE {p}locks (
	name    TEXT PRIMARY KEY,
	fence   INTEGER NOT NULL, -- of the last grant
	raised  INTEGER NOT NULL DEFAULT 0, -- later fences are also greater than this
	owner   TEXT NOT NULL,    -- exclusive holder, until expires; '': none, or the lease lingers
	expires INTEGER NOT NULL,
	since   INTEGER NOT NULL,
	note    TEXT NOT NULL,
	rev     INTEGER NOT NULL, -- grows with every change of the row; starts at the time of its creation
	crowd   INTEGER NOT NULL, -- until then, newcomers must look at the record and the places
	record  TEXT NOT NULL     -- JSON: shared holders and marks of releases, in order
) WITHOUT ROWID;

-- The greatest token that each resource of the program's own transactions has seen; see
-- Driver.CheckFence.
CREATE TABLE IF NOT EXISTS {p}fences (
	resource TEXT NOT NULL PRIMARY KEY,
	token    BIGINT NOT NULL,
	owner    TEXT NOT NULL,
	epoch    BIGINT NOT NULL DEFAULT 0
);

-- The clock has milliseconds, so lost starts at the end of the present one.
CREATE TABLE {p}meta (
	version INTEGER NOT NULL,
	lost    INTEGER NOT NULL -- greatest fence of a row that anybody deleted
);
INSERT INTO {p}meta VALUES (2, cast(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 + 999);

CREATE TRIGGER {p}lost AFTER DELETE ON {p}locks
BEGIN UPDATE {p}meta SET lost = max(lost, OLD.fence, OLD.raised); END;
