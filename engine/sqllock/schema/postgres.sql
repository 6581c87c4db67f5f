-- Leasehold's tables on PostgreSQL. {p} is Options.Schema and Options.Prefix. Times are
-- microseconds of the database's clock since 1970. A time in the past means that whatever
-- it ends is over.

-- One row per resource. It stays for at least a day after the last use, so that fences grow.
-- The key is the only index, and each page has spare room, so that updates stay in their page.
CREATE TABLE {p}locks (
	name    text COLLATE "C" PRIMARY KEY,
	fence   bigint NOT NULL, -- of the last grant
	raised  bigint NOT NULL DEFAULT 0, -- later fences are also greater than this
	owner   text COLLATE "C" NOT NULL, -- exclusive holder, until expires; '': none, or the lease lingers
	expires bigint NOT NULL,
	since   bigint NOT NULL,
	note    text NOT NULL,
	rev     bigint NOT NULL, -- grows with every change of the row; starts at the time of its creation
	crowd   bigint NOT NULL, -- until then, newcomers must look at the record and the places
	record  text NOT NULL    -- JSON: shared holders and marks of releases, in order
) WITH (fillfactor = 50);

-- The greatest token that each resource of the program's own transactions has seen; see
-- Driver.CheckFence.
CREATE TABLE IF NOT EXISTS {p}fences (
	resource text COLLATE "C" PRIMARY KEY,
	token    bigint NOT NULL,
	owner    text COLLATE "C" NOT NULL,
	epoch    bigint NOT NULL DEFAULT 0
);

CREATE TABLE {p}meta (version integer PRIMARY KEY);
INSERT INTO {p}meta VALUES (2);
