-- Leasehold's tables on MySQL and MariaDB. {p} is Options.Schema and Options.Prefix.
-- Times are microseconds of the database's clock since 1970. A time in the past means that
-- whatever it ends is over. Text is binary, because collations treat different names as
-- equal. The database commits each statement by itself. So each can be repeated, and the
-- version comes last.

-- One row per resource. It stays for at least a day after the last use, so that fences grow.
CREATE TABLE IF NOT EXISTS {p}locks (
	name    VARBINARY(512) PRIMARY KEY,
	fence   BIGINT NOT NULL, -- of the last grant
	raised  BIGINT NOT NULL DEFAULT 0, -- later fences are also greater than this
	owner   VARBINARY(255) NOT NULL, -- exclusive holder, until expires; '': none, or the lease lingers
	expires BIGINT NOT NULL,
	since   BIGINT NOT NULL,
	note    MEDIUMBLOB NOT NULL,
	rev     BIGINT NOT NULL, -- grows with every change of the row; starts at the time of its creation
	crowd   BIGINT NOT NULL, -- until then, newcomers must look at the record and the places
	record  MEDIUMBLOB NOT NULL -- JSON: shared holders and marks of releases, in order
) ENGINE = InnoDB;

-- The greatest token that each resource of the program's own transactions has seen; see
-- Driver.CheckFence.
CREATE TABLE IF NOT EXISTS {p}fences (
	resource VARBINARY(512) PRIMARY KEY,
	token    BIGINT NOT NULL,
	owner    VARBINARY(255) NOT NULL,
	epoch    BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS {p}meta (version INT PRIMARY KEY) ENGINE = InnoDB;

INSERT INTO {p}meta VALUES (2 + IF(@@autocommit, 0, 9223372036854775807)) ON DUPLICATE KEY UPDATE version = version;
