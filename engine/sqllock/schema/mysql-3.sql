-- What version 3 of the tables adds to version 2. The version comes last. Each statement can
-- be repeated, except the first, which then finds its column.
-- served: places up to this number are over.
ALTER TABLE {p}locks ADD COLUMN served BIGINT NOT NULL DEFAULT 0;

-- One row per waiter, its place, in the order of seq. It counts while its process sends
-- heartbeats.
CREATE TABLE IF NOT EXISTS {p}places (
	name  VARBINARY(512) NOT NULL,
	seq   BIGINT NOT NULL,
	owner VARBINARY(255) NOT NULL,
	proc  VARBINARY(64) NOT NULL,
	mode  INT NOT NULL,
	lim   BIGINT NOT NULL,
	wants BIGINT NOT NULL, -- TTL of the lease that it waits for
	note  MEDIUMBLOB NOT NULL,
	PRIMARY KEY (name, seq, owner),
	UNIQUE KEY owners (name, owner),
	KEY procs (proc)
) ENGINE = InnoDB;

-- One row per process that waits. Its places count until ends.
CREATE TABLE IF NOT EXISTS {p}beats (
	proc   VARBINARY(64) PRIMARY KEY,
	ends   BIGINT NOT NULL,
	number BIGINT NOT NULL -- of the heartbeat; the process remembers when it sent each
) ENGINE = InnoDB;

INSERT INTO {p}meta VALUES (3 + IF(@@autocommit, 0, 9223372036854775807)) ON DUPLICATE KEY UPDATE version = version;
