-- Leasehold's tables on PostgreSQL. {p} is Options.Schema and Options.Prefix. Instants are
-- microseconds of the database's clock since 1970; an instant in the past means free,
-- gone or not in force.

-- One row per resource. It outlives the lock, so that fences grow, by at least a day. No
-- index but the key's, and room in each page: changes then stay in their page.
CREATE TABLE {p}locks (
	name    text COLLATE "C" PRIMARY KEY,
	fence   bigint NOT NULL, -- last given
	raised  bigint NOT NULL DEFAULT 0, -- later fences are above it, too
	owner   text COLLATE "C" NOT NULL, -- exclusive holder, until expires; '': free, or it lingers
	expires bigint NOT NULL,
	since   bigint NOT NULL,
	note    text NOT NULL,
	rev     bigint NOT NULL, -- grows with every change of the row, from the clock when it is made
	crowd   bigint NOT NULL, -- until then the record may have somebody who counts
	record  text NOT NULL    -- JSON: places in the queue, shared holders, traces, in order
) WITH (fillfactor = 50);

-- What the resources of the caller's own transactions have seen: see Driver.CheckFence.
CREATE TABLE IF NOT EXISTS {p}fences (
	resource text COLLATE "C" PRIMARY KEY,
	token    bigint NOT NULL,
	owner    text COLLATE "C" NOT NULL,
	epoch    bigint NOT NULL DEFAULT 0
);

CREATE TABLE {p}meta (version integer PRIMARY KEY);
INSERT INTO {p}meta VALUES (2);
