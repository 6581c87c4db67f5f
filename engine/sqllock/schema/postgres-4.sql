-- What version 4 of the tables adds to version 3; see postgres-3.sql.
SET LOCAL lock_timeout = '500ms';
ALTER TABLE {p}locks
	ADD COLUMN IF NOT EXISTS recall bigint NOT NULL DEFAULT 0; -- until then the holder wants to know of the first waiter; negative: of each

ALTER TABLE {p}places
	ADD COLUMN IF NOT EXISTS asks smallint NOT NULL DEFAULT 0; -- 1: the waiter will want to know so, once it holds; 2: of each

UPDATE {p}meta SET version = 4 WHERE version = 3;
