-- What version 4 of the tables has more than version 3; see postgres-3.sql.
SET LOCAL lock_timeout = '500ms';
ALTER TABLE {p}locks
	ADD COLUMN IF NOT EXISTS recall bigint NOT NULL DEFAULT 0; -- until then a holder listens for places that come; negative: for each

ALTER TABLE {p}places
	ADD COLUMN IF NOT EXISTS asks smallint NOT NULL DEFAULT 0; -- 1: the waiter will, once it holds; 2: for each

UPDATE {p}meta SET version = 4 WHERE version = 3;
