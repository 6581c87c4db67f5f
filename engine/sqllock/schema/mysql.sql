-- Leasehold's tables on MySQL and MariaDB. {p} is Options.Schema and Options.Prefix.
-- Instants are microseconds of the database's clock since 1970; an instant in the past
-- means free, gone or not in force. Text is binary: collations take different names for
-- the same. The database commits each statement by itself, so that each may be repeated,
-- and the version comes last.

-- One row per resource. It outlives the lock, so that fences grow, by at least a day.
CREATE TABLE IF NOT EXISTS {p}locks (
	name    VARBINARY(512) PRIMARY KEY,
	fence   BIGINT NOT NULL, -- last given
	raised  BIGINT NOT NULL DEFAULT 0, -- later fences are above it, too
	owner   VARBINARY(255) NOT NULL, -- exclusive holder, until expires; '': free, or it lingers
	expires BIGINT NOT NULL,
	since   BIGINT NOT NULL,
	note    MEDIUMBLOB NOT NULL,
	rev     BIGINT NOT NULL, -- grows with every change of the row, from the clock when it is made
	crowd   BIGINT NOT NULL, -- until then the record may have somebody who counts
	record  MEDIUMBLOB NOT NULL -- JSON: places in the queue, shared holders, traces, in order
) ENGINE = InnoDB;

-- What the resources of the caller's own transactions have seen: see Driver.CheckFence.
CREATE TABLE IF NOT EXISTS {p}fences (
	resource VARBINARY(512) PRIMARY KEY,
	token    BIGINT NOT NULL,
	owner    VARBINARY(255) NOT NULL,
	epoch    BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS {p}meta (version INT PRIMARY KEY) ENGINE = InnoDB;

INSERT INTO {p}meta VALUES (2 + IF(@@autocommit, 0, 9223372036854775807)) ON DUPLICATE KEY UPDATE version = version;
