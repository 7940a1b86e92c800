== insert
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(40), n int DEFAULT 7, <c> varchar(20) DEFAULT 'none')
CREATE TABLE <u> LIKE <t>
INSERT INTO <t> VALUES (1, <text>, <small>, <text>), (2, <text>, NULL, DEFAULT), (3, '', 0, '')
INSERT INTO <t> (id, v) VALUES (4, <text>)
INSERT <t> SET id = 5, n = <int>, v = <text>
INSERT INTO <t> (id) VALUES (6), (7), (8)
INSERT LOW_PRIORITY INTO <t> VALUES (9, DEFAULT, DEFAULT, DEFAULT)
INSERT HIGH_PRIORITY IGNORE INTO <t> VALUES (9, 'lost', 1, ''), (10, 'kept', 1, '')
INSERT IGNORE <t> (id, v) VALUES (1, 'lost'), (11, 'kept'), (2, 'lost')
INSERT INTO <t> (id, v, n) VALUES (1, 'again', 5) ON DUPLICATE KEY UPDATE n = n + 1, v = VALUES(v)
INSERT INTO <t> (id, v, n) VALUES (12, 'new', 5), (2, 'two', 6) ON DUPLICATE KEY UPDATE n = 100
INSERT INTO <t> (id, n) VALUES (3, 9) ON DUPLICATE KEY UPDATE id = id + 500
[mysql] INSERT INTO <t> (id, n) VALUES (4, 44) AS fresh ON DUPLICATE KEY UPDATE n = fresh.n + <t>.id
[mysql] INSERT INTO <t> VALUES ROW(20, 'row', 1, 'x'), ROW(21, 'row', 2, 'y')
[mysql] INSERT INTO <u> TABLE <t>
[mariadb] INSERT INTO <u> SELECT * FROM <t>
[mariadb] INSERT INTO <t> (id, v) VALUES (20, <text>), (21, 'b') RETURNING id, UPPER(v)
INSERT INTO <u> (id, v) SELECT id + 1000, CONCAT(COALESCE(v, ''), '!') FROM <t> WHERE id < 6
INSERT IGNORE INTO <u> SELECT * FROM <t> WHERE id % 2 = 0
INSERT INTO <u> SELECT id, v, n, <c> FROM <t> AS s ON DUPLICATE KEY UPDATE n = COALESCE(s.n, 0) DIV 2 + 1
INSERT INTO <u> (id, v) WITH RECURSIVE up (i) AS (SELECT 3000 UNION ALL SELECT i + 1 FROM up WHERE i < 3040) SELECT i, CONCAT('r', i) FROM up
INSERT INTO <t> () VALUES (30, 'thirty', 30, '')

== replace
CREATE TABLE <t> (id int PRIMARY KEY, u int UNIQUE, v varchar(40))
REPLACE INTO <t> VALUES (1, 1, <text>), (2, 2, <text>), (3, 3, <text>)
REPLACE INTO <t> VALUES (1, 9, <text>)
REPLACE INTO <t> VALUES (4, 9, 'takes the place of the first')
REPLACE INTO <t> VALUES (2, 3, 'takes the place of two')
REPLACE <t> SET id = 5, u = 5, v = <text>
REPLACE LOW_PRIORITY INTO <t> (id, v) VALUES (5, 'without u')
REPLACE INTO <t> SELECT id + 10, u + 10, v FROM (SELECT * FROM <t>) AS d
REPLACE INTO <t> SELECT id, u, v FROM (SELECT * FROM <t>) AS d
[mariadb] REPLACE INTO <t> VALUES (4, 44, 'r') RETURNING *
[mysql] CREATE TABLE <u> LIKE <t>
[mysql] REPLACE INTO <u> TABLE <t>

== update
CREATE TABLE <t> (id int PRIMARY KEY, n int, v varchar(60), <c> int)
CREATE TABLE <u> (id int PRIMARY KEY, t int, n int)
INSERT INTO <t> VALUES (1, 1, <text>, 1), (2, 2, <text>, 2), (3, 3, <text>, 3), (4, 4, <text>, NULL), (5, 5, <text>, 5), (6, 6, NULL, 6)
INSERT INTO <u> SELECT id + 100, id, n * 10 FROM <t>
?UPDATE <t> SET n = n + 1
?UPDATE <t> SET n = n WHERE id > 0
?UPDATE <t> SET v = <text>, <c> = <int> WHERE id = <key>
?UPDATE <t> SET <c> = NULL ORDER BY id DESC LIMIT 2
?UPDATE LOW_PRIORITY IGNORE <t> SET id = 3 WHERE id IN (4, 5)
?UPDATE <t> SET id = id + 1000 WHERE id <= 2
?UPDATE <t> SET id = id - 1 WHERE id > 1000 ORDER BY id
?UPDATE <t> SET id = -id
?UPDATE <t> SET id = -id, n = id
?UPDATE <t> AS a JOIN <u> AS b ON a.id = b.t SET a.n = b.n, b.n = a.id
?UPDATE <t>, <u> SET <t>.v = CONCAT('joined ', <u>.id) WHERE <t>.id = <u>.t AND <u>.n > 20
?UPDATE <t> LEFT JOIN <u> ON <t>.id = <u>.t SET <u>.t = NULL, <t>.<c> = 9 WHERE <t>.id = 3
?UPDATE <t> SET n = (SELECT MAX(n) FROM <u>) WHERE id = 1
?UPDATE <u> SET n = n + 1 WHERE t IN (SELECT id FROM <t> WHERE n > 2)
[mysql] ?WITH big AS (SELECT id FROM <t> WHERE n > 2) UPDATE <t> JOIN big USING (id) SET <t>.n = -1
[mysql] ?WITH one AS (SELECT 1 AS k) UPDATE <u> SET n = 77 WHERE t IN (SELECT k FROM one)
?UPDATE <t> SET v = DEFAULT WHERE id = 5
?UPDATE <t> SET v = REPEAT(v, 2), n = LENGTH(v) WHERE LENGTH(v) < 15

== delete
CREATE TABLE <t> (id int PRIMARY KEY, n int, v varchar(60))
CREATE TABLE <u> (id int PRIMARY KEY, t int)
CREATE TABLE <v> LIKE <u>
INSERT INTO <t> VALUES (1, 1, <text>), (2, 2, <text>), (3, 3, <text>), (4, 4, <text>), (5, 5, <text>), (6, 6, <text>), (7, 7, ''), (8, 8, '')
INSERT INTO <u> SELECT id + 100, id FROM <t>
INSERT INTO <v> SELECT * FROM <u>
?DELETE FROM <t> WHERE id = <key>
?DELETE QUICK FROM <t> WHERE n > 7
?DELETE LOW_PRIORITY IGNORE FROM <t> WHERE n = 1
?DELETE FROM <t> ORDER BY n DESC LIMIT 1
?DELETE FROM <u> WHERE t IN (SELECT id FROM <t> WHERE n > 4)
?DELETE <t>, <u> FROM <t> JOIN <u> ON <t>.id = <u>.t WHERE <t>.id = 3
?DELETE FROM a, b USING <t> AS a INNER JOIN <v> AS b ON a.id = b.t WHERE a.n = 4
?DELETE a FROM <v> a LEFT JOIN <t> b ON a.t = b.id WHERE b.id IS NULL
[mysql] ?WITH low AS (SELECT MIN(id) AS m FROM <u>) DELETE <u> FROM <u> JOIN low ON <u>.id = low.m
[mariadb] ?DELETE FROM <t> WHERE id < 5 RETURNING id, v
?DELETE FROM <v>
INSERT INTO <t> VALUES (50, 1, 'after')

== load
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(60), n int)
LOAD DATA LOCAL INFILE <file> INTO TABLE <t> <<< 1\tone\t1\n2\ttwo\t\N\n3\té\t3\n
LOAD DATA LOCAL INFILE <file> REPLACE INTO TABLE <t> FIELDS TERMINATED BY ',' ENCLOSED BY '"' LINES TERMINATED BY '\r\n' IGNORE 1 LINES (id, v) SET n = id * 2 <<< id,v\r\n3,"three, again"\r\n4,"four"\r\n
LOAD DATA LOCAL INFILE <file> IGNORE INTO TABLE <t> CHARACTER SET latin1 (id, @v) SET v = UPPER(@v) <<< 4\tlost\n5\tfive\n
[mysql] LOAD DATA CONCURRENT LOCAL INFILE <file> INTO TABLE <t> LINES STARTING BY '#' TERMINATED BY '\n' <<< x#6\tsix\t6\ny#7\tseven\t7\n
LOAD XML LOCAL INFILE <file> INTO TABLE <t> <<< <row id="8" v="eight" n="8"/>\n<row><id>9</id><v>nine</v></row>\n
UPDATE <t> SET n = 100 WHERE id > 2

== transactions
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(60))
BEGIN
INSERT INTO <t> VALUES (1, <text>), (2, <text>)
SAVEPOINT <o1>
INSERT INTO <t> VALUES (3, <text>)
UPDATE <t> SET v = 'undone' WHERE id = 1
ROLLBACK TO SAVEPOINT <o1>
INSERT INTO <t> VALUES (4, <text>)
?RELEASE SAVEPOINT <o1>
COMMIT
START TRANSACTION WITH CONSISTENT SNAPSHOT
DELETE FROM <t>
ROLLBACK
START TRANSACTION READ WRITE
UPDATE <t> SET id = id + 10
SAVEPOINT a
SAVEPOINT b
INSERT INTO <t> VALUES (5, 'b')
ROLLBACK TO a
SAVEPOINT a
INSERT INTO <t> VALUES (6, 'a')
COMMIT WORK
SET autocommit = 0
INSERT INTO <t> VALUES (7, 'open')
UPDATE <t> SET v = 'open too' WHERE id = 14
COMMIT AND CHAIN
INSERT INTO <t> VALUES (8, 'chained')
ROLLBACK AND NO CHAIN
INSERT INTO <t> VALUES (9, 'ended by what follows')
CREATE TABLE <u> (id int PRIMARY KEY)
INSERT INTO <u> VALUES (1)
ROLLBACK
SET autocommit = 1
SET TRANSACTION ISOLATION LEVEL SERIALIZABLE
BEGIN
INSERT INTO <u> SELECT id + 100 FROM <t>
COMMIT
START TRANSACTION READ ONLY
SELECT COUNT(*) FROM <u>
COMMIT
2|BEGIN
2|INSERT INTO <t> VALUES (30, 'second session')
INSERT INTO <t> VALUES (31, 'first session, before it')
2|COMMIT

== xa
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(60))
XA START <xid1>
INSERT INTO <t> VALUES (1, <text>), (2, <text>)
XA END <xid1>
XA PREPARE <xid1>
2|INSERT INTO <t> VALUES (3, 'meanwhile')
XA COMMIT <xid1>
XA START <xid2>
UPDATE <t> SET v = 'undone'
XA END <xid2>
XA PREPARE <xid2>
XA ROLLBACK <xid2>
XA BEGIN <xid3>
DELETE FROM <t> WHERE id = 1
XA END <xid3>
XA COMMIT <xid3> ONE PHASE
XA START <xid4>
INSERT INTO <t> VALUES (4, 'undone')
XA END <xid4>
XA ROLLBACK <xid4>
INSERT INTO <t> VALUES (5, 'after')

== prepared
= plain
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(60), d decimal(10,2))
SET @a = 1, @b = <text>, @c = <dec>
PREPARE <o1> FROM 'INSERT INTO <t> VALUES (?, ?, ?)'
EXECUTE <o1> USING @a, @b, @c
SET @a = 2, @b = NULL
EXECUTE <o1> USING @a, @b, @c
DEALLOCATE PREPARE <o1>
SET @sql = CONCAT('UPDATE <t> SET v = ', QUOTE('made'), ' WHERE id = ', 2)
PREPARE <o2> FROM @sql
EXECUTE <o2>
DROP PREPARE <o2>
[mariadb] EXECUTE IMMEDIATE 'INSERT INTO <t> (id, v) VALUES (3, ?)' USING 'at once'
PREPARE <o3> FROM 'ALTER TABLE <t> ADD COLUMN e int DEFAULT 5'
EXECUTE <o3>
PREPARE <o3> FROM 'TRUNCATE TABLE <t>'
EXECUTE <o3>
INSERT INTO <t> (id) VALUES (9)

== triggers
CREATE TABLE <t> (id int PRIMARY KEY, n int, changed int DEFAULT 0)
CREATE TABLE <u> (no int AUTO_INCREMENT PRIMARY KEY, what varchar(20), id int)
CREATE TRIGGER <o1> BEFORE INSERT ON <t> FOR EACH ROW SET NEW.changed = NEW.n * 2
CREATE TRIGGER <o2> AFTER INSERT ON <t> FOR EACH ROW INSERT INTO <u> (what, id) VALUES ('new', NEW.id)
CREATE TRIGGER <o3> AFTER UPDATE ON <t> FOR EACH ROW BEGIN IF NEW.id <> OLD.id THEN INSERT INTO <u> (what, id) VALUES ('moved', OLD.id); END IF; UPDATE <u> SET what = 'changed' WHERE id = NEW.id; END
CREATE TRIGGER <o4> BEFORE DELETE ON <t> FOR EACH ROW DELETE FROM <u> WHERE id = OLD.id
CREATE TRIGGER <o5> BEFORE UPDATE ON <t> FOR EACH ROW SET NEW.changed = OLD.changed + 1
INSERT INTO <t> (id, n) VALUES (1, 1), (2, 2), (3, 3)
UPDATE <t> SET n = n + 1
UPDATE <t> SET id = 30 WHERE id = 3
DELETE FROM <t> WHERE id = 1
REPLACE INTO <t> (id, n) VALUES (2, 22)
INSERT INTO <t> (id, n) VALUES (2, 5), (4, 4) ON DUPLICATE KEY UPDATE n = 55
DROP TRIGGER <o4>
DELETE FROM <t>
TRUNCATE <t>

== routines
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(60))
CREATE TABLE <u> LIKE <t>
CREATE PROCEDURE <o1>(n int) BEGIN DECLARE i int DEFAULT 0; WHILE i < n DO INSERT INTO <t> VALUES (i, CONCAT('p', i)); SET i = i + 1; END WHILE; END
CREATE PROCEDURE <o2>() BEGIN DECLARE done int DEFAULT 0; DECLARE k int; DECLARE c CURSOR FOR SELECT id FROM <t>; DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = 1; OPEN c; walk: LOOP FETCH c INTO k; IF done THEN LEAVE walk; END IF; INSERT INTO <u> VALUES (k * 10, 'by cursor'); END LOOP; CLOSE c; END
CREATE PROCEDURE <o3>() BEGIN DECLARE EXIT HANDLER FOR 1062 BEGIN ROLLBACK; END; START TRANSACTION; INSERT INTO <u> VALUES (7777, 'undone'); INSERT INTO <u> VALUES (10, 'twice'); COMMIT; END
CREATE FUNCTION <o4>(k int) RETURNS int MODIFIES SQL DATA DETERMINISTIC BEGIN UPDATE <t> SET v = 'by a function' WHERE id = k; RETURN k; END
CALL <o1>(5)
CALL <o2>()
CALL <o3>()
SELECT <o4>(3)
INSERT INTO <u> (id) VALUES (<o4>(4) + 500)
DO <o4>(2)
ALTER PROCEDURE <o1> COMMENT 'once'
DROP PROCEDURE <o1>
DROP FUNCTION IF EXISTS <o4>
CREATE EVENT <o5> ON SCHEDULE EVERY 1 YEAR STARTS '2037-01-01' DO DELETE FROM <t>
ALTER EVENT <o5> DISABLE
DROP EVENT <o5>

== views
CREATE TABLE <t> (id int PRIMARY KEY, n int, v varchar(20))
CREATE VIEW <o1> AS SELECT id, n FROM <t> WHERE n > 0 WITH CHECK OPTION
INSERT INTO <o1> VALUES (1, 1), (2, 2)
UPDATE <o1> SET n = 5 WHERE id = 2
CREATE OR REPLACE VIEW <o1> AS SELECT id, v FROM <t>
INSERT INTO <o1> VALUES (3, 'view')
DELETE FROM <o1> WHERE id = 1
ALTER VIEW <o1> AS SELECT id, n, v FROM <t>
UPDATE <o1> SET id = id + 10
DROP VIEW <o1>

== foreign keys
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20))
CREATE TABLE <u> (id int PRIMARY KEY, t int, CONSTRAINT <o1> FOREIGN KEY (t) REFERENCES <t> (id))
INSERT INTO <t> VALUES (1, 'a'), (2, 'b'), (3, 'c')
INSERT INTO <u> VALUES (10, 1), (20, 2), (30, NULL)
!DELETE FROM <t> WHERE id = 1
SET foreign_key_checks = 0
DELETE FROM <t> WHERE id = 1
INSERT INTO <u> VALUES (40, 99)
TRUNCATE <t>
INSERT INTO <t> VALUES (2, 'again'), (99, 'x')
SET foreign_key_checks = 1
ALTER TABLE <u> DROP FOREIGN KEY <o1>
DROP TABLE <t>
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20))

== cascades
= may stop u: is not in this server's log
= may stop v: is not in this server's log
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20))
! CREATE TABLE <u> (id int PRIMARY KEY, t int, FOREIGN KEY (t) REFERENCES <t> (id) ON DELETE CASCADE ON UPDATE CASCADE)
! CREATE TABLE <v> (id int PRIMARY KEY, u int, FOREIGN KEY (u) REFERENCES <u> (id) ON DELETE SET NULL ON UPDATE CASCADE)
INSERT INTO <t> VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')
! INSERT INTO <u> VALUES (10, 1), (11, 1), (20, 2), (30, 3), (40, NULL)
! INSERT INTO <v> VALUES (100, 10), (101, 11), (200, 20), (300, NULL)
DELETE FROM <t> WHERE id = 1
UPDATE <t> SET id = 22 WHERE id = 2
! UPDATE <u> SET id = id + 1000 WHERE id = 20
DELETE <t> FROM <t> WHERE id = 3
REPLACE INTO <t> VALUES (4, 'replaced')

== add columns
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <t> VALUES (1, <text>), (2, <text>), (3, <text>)
?ALTER TABLE <t> ADD <c> int
?UPDATE <t> SET v = <text> WHERE id = 2
?ALTER TABLE <t> ADD COLUMN a1 int NOT NULL DEFAULT <small> FIRST
?ALTER TABLE <t> ADD COLUMN a2 varchar(20) DEFAULT <word> AFTER id, ALGORITHM=INSTANT
?ALTER TABLE <t> ADD COLUMN (a3 int DEFAULT 3, a4 text), ALGORITHM=INPLACE
?ALTER TABLE <t> ADD COLUMN a5 datetime DEFAULT '2020-02-02 02:02:02', ADD INDEX (a5), ALGORITHM=COPY
?ALTER TABLE <t> ADD a6 timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP
?INSERT INTO <t> (id) VALUES (4)
[generated]?ALTER TABLE <t> ADD a7 varchar(50) AS (CONCAT(id, ':', COALESCE(v, ''))) STORED
[generated]?ALTER TABLE <t> ADD a8 int GENERATED ALWAYS AS (id * 2) VIRTUAL
?ALTER TABLE <t> ADD a9 decimal(12,4) DEFAULT 1.5 COMMENT 'it''s; a "comment" -- no', LOCK=NONE
?ALTER TABLE <t> ADD a10 enum('x','y') NOT NULL
?ALTER TABLE <t> ADD a11 double DEFAULT 1e10, ADD a12 binary(4) DEFAULT 'ab', ADD a13 bit(5) DEFAULT b'101'
!?ALTER TABLE <t> ADD a14 varchar(36) DEFAULT (UUID())
?ALTER TABLE <t> ADD a15 int DEFAULT (LENGTH(v))
?ALTER TABLE <t> ADD a16 set('p','q') DEFAULT 'q', ADD a17 year DEFAULT 2020, ADD a18 time DEFAULT '-10:00:00'
[mariadb] ?ALTER TABLE <t> ADD COLUMN IF NOT EXISTS v int
?INSERT INTO <t> (id, v) VALUES (5, <text>)
UPDATE <t> SET v = <text> WHERE id = 1

== add columns quietly
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20))
CREATE TABLE <u> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <t> VALUES (1, <text>), (2, <text>)
INSERT INTO <u> VALUES (1, <text>), (2, <text>)
ALTER TABLE <t> ADD <c> int DEFAULT 5
ALTER TABLE <u> ADD <c> int NOT NULL DEFAULT 5, ADD <d> datetime DEFAULT CURRENT_TIMESTAMP

== drop columns
= may stop t: column
CREATE TABLE <t> (id int PRIMARY KEY, a int, b int, <c> varchar(20), d int)
INSERT INTO <t> VALUES (1, 1, 1, <text>, 1), (2, 2, 2, <text>, 2)
ALTER TABLE <t> DROP a
INSERT INTO <t> VALUES (3, 3, <text>, 3)
ALTER TABLE <t> DROP COLUMN <c>, DROP COLUMN d
UPDATE <t> SET b = 9
ALTER TABLE <t> ADD COLUMN a int DEFAULT 44 AFTER id
ALTER TABLE <t> ADD COLUMN <c> int DEFAULT 55
?INSERT INTO <t> (id) VALUES (4)
[mariadb] ALTER TABLE <t> DROP COLUMN IF EXISTS nothing

== rename columns
CREATE TABLE <t> (id int PRIMARY KEY, a int, b varchar(20), <c> int)
INSERT INTO <t> VALUES (1, 1, <text>, 10), (2, 2, <text>, 20)
ALTER TABLE <t> RENAME COLUMN a TO a1
?INSERT INTO <t> VALUES (3, 3, <text>, 30)
ALTER TABLE <t> CHANGE b b1 varchar(40)
ALTER TABLE <t> RENAME COLUMN <c> TO <d>, RENAME COLUMN a1 TO <e>
?UPDATE <t> SET b1 = 'after' WHERE id = 1
ALTER TABLE <t> CHANGE COLUMN <e> <f> int FIRST
INSERT INTO <t> (id, b1) VALUES (9, 'last')

== modify columns
CREATE TABLE <t> (id int PRIMARY KEY, a int, b varchar(20), c decimal(8,2), d date, e enum('x','y'))
INSERT INTO <t> VALUES (1, 1, <word>, <small>, <date>, 'x'), (2, 2, <word>, <small>, <date>, 'y'), (3, NULL, NULL, NULL, NULL, NULL)
?ALTER TABLE <t> MODIFY a bigint
?ALTER TABLE <t> MODIFY COLUMN b varchar(300) AFTER id
?ALTER TABLE <t> MODIFY c decimal(12,4)
?ALTER TABLE <t> MODIFY e enum('y','z','x')
?UPDATE <t> SET b = <word>
?ALTER TABLE <t> MODIFY d datetime
?ALTER TABLE <t> ALTER COLUMN b SET DEFAULT 'dflt'
?ALTER TABLE <t> ALTER b DROP DEFAULT
?ALTER TABLE <t> MODIFY b text CHARACTER SET latin1
?ALTER TABLE <t> MODIFY b mediumtext
?ALTER TABLE <t> CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
?ALTER TABLE <t> DEFAULT CHARACTER SET ucs2
?!INSERT INTO <t> (id, a) VALUES (4, 4)
[mysql] ?ALTER TABLE <t> ALTER COLUMN a SET INVISIBLE
[mysql] ?ALTER TABLE <t> ALTER COLUMN a SET VISIBLE
?UPDATE <t> SET a = 5 WHERE id = 2

== retype columns
CREATE TABLE <t> (id int PRIMARY KEY, <c> varchar(20))
INSERT INTO <t> VALUES (1, '1'), (2, '2')
ALTER TABLE <t> MODIFY <c> int
INSERT INTO <t> VALUES (3, 3)

== narrower columns
CREATE TABLE <t> (id int PRIMARY KEY, a bigint, b varchar(30), c datetime(6), d double)
INSERT INTO <t> VALUES (1, 1, 'a longer text', '2020-01-02 03:04:05.678901', 1.2345), (2, 2, 'two', '2021-01-01', 2)
SET sql_mode = ''
?ALTER TABLE <t> MODIFY b varchar(4)
?ALTER TABLE <t> MODIFY c datetime
?ALTER TABLE <t> MODIFY d double(9,1)
?ALTER TABLE <t> MODIFY b varchar(30) CHARACTER SET ascii
?INSERT INTO <t> (id, b) VALUES (3, 'x')

== keys change
CREATE TABLE <t> (id int PRIMARY KEY, n int NOT NULL, v varchar(20))
INSERT INTO <t> VALUES (1, 1, 'a'), (2, 2, 'b')
ALTER TABLE <t> DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)
INSERT INTO <t> VALUES (1, 2, 'c')

== other alters
CREATE TABLE <t> (id int AUTO_INCREMENT PRIMARY KEY, v varchar(20), n int)
INSERT INTO <t> (v) VALUES (<text>), (<text>)
?ALTER TABLE <t> ADD INDEX <o1> (v), ADD UNIQUE KEY <o2> (n)
?ALTER TABLE <t> AUTO_INCREMENT = 1000
?INSERT INTO <t> (v) VALUES (<text>)
?ALTER TABLE <t> COMMENT = 'RENAME TO nothing; DROP PARTITION p0'
?ALTER TABLE <t> ADD CONSTRAINT <o3> CHECK (n IS NULL OR n > -5)
?ALTER TABLE <t> ENGINE = InnoDB
?ALTER TABLE <t> FORCE
?ALTER TABLE <t> ROW_FORMAT = DYNAMIC, KEY_BLOCK_SIZE = 0
?ALTER TABLE <t> ORDER BY v
?ALTER TABLE <t> DISABLE KEYS
?ALTER TABLE <t> ENABLE KEYS
?OPTIMIZE TABLE <t>
?ANALYZE TABLE <t>
?CHECK TABLE <t>
?REPAIR TABLE <t>
?CHECKSUM TABLE <t>
?CREATE INDEX <o4> ON <t> (n, v)
?CREATE FULLTEXT INDEX <o5> ON <t> (v)
!ALTER TABLE <t> ADD COLUMN v int
!DROP TABLE nothing_of_this_name
DROP TABLE IF EXISTS nothing_of_this_name
?ALTER TABLE <t> ENGINE = MyISAM
?FLUSH STATUS
INSERT INTO <t> (v) VALUES ('last')

== renamed tables
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20))
CREATE TABLE <u> (id int PRIMARY KEY, v varchar(20), more int)
INSERT INTO <t> VALUES (1, 'a'), (2, 'b')
INSERT INTO <u> VALUES (1, 'x', 1), (3, 'y', 3)
RENAME TABLE <t> TO <w>, <u> TO <t>, <w> TO <u>
INSERT INTO <t> VALUES (4, 'now wide', 4)
INSERT INTO <u> VALUES (5, 'now narrow')
?ALTER TABLE <u> RENAME TO <v>
ALTER TABLE <t> RENAME AS <w>, ADD COLUMN z int DEFAULT 8
INSERT INTO <w> (id) VALUES (77)
RENAME TABLE <w> TO <t>

== swapped as by online tools
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <t> VALUES (1, 'a'), (2, 'b'), (3, 'c')
CREATE TABLE <u> LIKE <t>
ALTER TABLE <u> ADD COLUMN extra int DEFAULT 1
CREATE TRIGGER <o1> AFTER INSERT ON <t> FOR EACH ROW REPLACE INTO <u> (id, v) VALUES (NEW.id, NEW.v)
INSERT LOW_PRIORITY IGNORE INTO <u> (id, v) SELECT id, v FROM <t> LOCK IN SHARE MODE
INSERT INTO <t> VALUES (4, 'd')
RENAME TABLE <t> TO <v>, <u> TO <t>
DROP TRIGGER IF EXISTS <o1>
DROP TABLE IF EXISTS <v>
INSERT INTO <t> VALUES (5, 'e', 5)

== truncate and drop
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20))
CREATE TABLE <u> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <t> VALUES (1, <text>), (2, <text>)
INSERT INTO <u> VALUES (1, <text>), (2, <text>)
TRUNCATE TABLE <t>
INSERT INTO <t> VALUES (3, <text>)
?TRUNCATE <db>.<t>
DROP TABLE <u>
?DROP TABLE IF EXISTS <u>, <t>
CREATE TABLE IF NOT EXISTS <u> (id int PRIMARY KEY, other datetime, v varchar(30))
CREATE TABLE IF NOT EXISTS <t> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <u> (id, v) VALUES (7, <text>)
INSERT INTO <t> VALUES (8, <text>)
[mariadb] CREATE OR REPLACE TABLE <t> (id int PRIMARY KEY, v varchar(20))
[mariadb] INSERT INTO <t> VALUES (9, <text>)

== made of others
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20), n int)
INSERT INTO <t> VALUES (1, <text>, 1), (2, <text>, 2)
CREATE TABLE <u> LIKE <t>
INSERT INTO <u> SELECT * FROM <t>
CREATE TABLE <v> (PRIMARY KEY (id)) SELECT * FROM <t>
CREATE TABLE <w> (id int PRIMARY KEY, extra int DEFAULT 3) IGNORE SELECT id, v FROM <t>
INSERT INTO <w> (id) VALUES (50)
UPDATE <v> SET n = 9
CREATE TEMPORARY TABLE <o1> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <o1> VALUES (1, 'temporary')
INSERT INTO <t> SELECT id + 10, v, 0 FROM <o1>
ALTER TABLE <o1> ADD COLUMN n int
TRUNCATE <o1>
DROP TEMPORARY TABLE <o1>
CREATE TEMPORARY TABLE <t> (id int PRIMARY KEY)
INSERT INTO <t> VALUES (999)
DROP TEMPORARY TABLE <t>
INSERT INTO <t> VALUES (20, 'the lasting one', 2)

== databases
CREATE DATABASE <x1> CHARACTER SET latin1
CREATE TABLE <x1>.<t> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <x1>.<t> VALUES (1, 'ä'), (2, 'b')
CREATE TABLE <u> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <u> SELECT * FROM <x1>.<t>
USE <x1>
INSERT INTO <t> VALUES (3, 'in use')
ALTER DATABASE <x1> CHARACTER SET utf8mb4
CREATE TABLE <v> (id int PRIMARY KEY)
INSERT INTO <v> VALUES (1)
RENAME TABLE <v> TO <db>.<v>
INSERT INTO <db>.<v> VALUES (2)
USE <db>
!DROP DATABASE <x2>
DROP DATABASE IF EXISTS <x2>
CREATE SCHEMA IF NOT EXISTS <x2>
CREATE TABLE <x2>.<t> (id int PRIMARY KEY, other int)
INSERT INTO <x2>.<t> VALUES (1, 1)
DROP SCHEMA <x2>
?DROP DATABASE <x1>
INSERT INTO <u> VALUES (9, 'goes on')

== range partitions
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20)) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN MAXVALUE)
INSERT INTO <t> VALUES (1, <text>), (11, <text>), (21, <text>), (31, <text>)
?ALTER TABLE <t> DROP PARTITION p0
?INSERT INTO <t> VALUES (2, 'again')
?ALTER TABLE <t> TRUNCATE PARTITION p1
?ALTER TABLE <t> REORGANIZE PARTITION p2 INTO (PARTITION p2 VALUES LESS THAN (30), PARTITION p3 VALUES LESS THAN MAXVALUE)
?UPDATE <t> SET id = id + 3
?ALTER TABLE <t> REBUILD PARTITION p1
?ALTER TABLE <t> ANALYZE PARTITION ALL
?ALTER TABLE <t> OPTIMIZE PARTITION p1
?ALTER TABLE <t> REMOVE PARTITIONING
?ALTER TABLE <t> PARTITION BY HASH (id) PARTITIONS 3
INSERT INTO <t> VALUES (100, 'last')

== other partitions
CREATE TABLE <t> (id int, d date, v varchar(20), PRIMARY KEY (id, d)) PARTITION BY LIST (MONTH(d)) (PARTITION h1 VALUES IN (1,2,3,4,5,6), PARTITION h2 VALUES IN (7,8,9,10,11,12))
CREATE TABLE <u> (id int PRIMARY KEY, v varchar(20)) PARTITION BY KEY () PARTITIONS 2
CREATE TABLE <v> (a int, b varchar(10), PRIMARY KEY (a, b)) PARTITION BY RANGE COLUMNS (b, a) SUBPARTITION BY HASH (a) SUBPARTITIONS 2 (PARTITION lo VALUES LESS THAN ('m', 5), PARTITION hi VALUES LESS THAN (MAXVALUE, MAXVALUE))
INSERT INTO <t> VALUES (1, '2020-01-01', 'a'), (2, '2020-12-01', 'b')
INSERT INTO <u> VALUES (1, <text>), (2, <text>), (3, <text>)
INSERT INTO <v> VALUES (1, 'a'), (9, 'z')
UPDATE <t> SET d = '2020-07-07' WHERE id = 1
ALTER TABLE <t> ADD PARTITION (PARTITION none VALUES IN (NULL, 0))
ALTER TABLE <u> COALESCE PARTITION 1
ALTER TABLE <u> ADD PARTITION PARTITIONS 2
ALTER TABLE <u> PARTITION BY LINEAR HASH (id) PARTITIONS 4
DELETE FROM <u> PARTITION (p0, p1)
INSERT INTO <v> PARTITION (hi) VALUES (1, 'zz')
ALTER TABLE <t> TRUNCATE PARTITION h2
ALTER TABLE <t> DROP PARTITION h1
ALTER TABLE <v> TRUNCATE PARTITION ALL
INSERT INTO <v> VALUES (3, 'c')

== exchanged partitions
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20)) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)
CREATE TABLE <u> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <t> VALUES (1, 'one'), (2, 'two'), (11, 'eleven')
INSERT INTO <u> VALUES (5, 'five')
ALTER TABLE <t> EXCHANGE PARTITION p0 WITH TABLE <u>
INSERT INTO <t> VALUES (6, 'six')
UPDATE <u> SET v = 'out' WHERE id = 1
[mysql] ?ALTER TABLE <t> EXCHANGE PARTITION p0 WITH TABLE <u> WITHOUT VALIDATION

== keys of other types
CREATE TABLE <t> (a varchar(20), b date, n int, PRIMARY KEY (a, b))
CREATE TABLE <u> (k varbinary(8) PRIMARY KEY, n int)
CREATE TABLE <v> (k decimal(20,5), e enum('x','y','z'), n int, PRIMARY KEY (e, k))
CREATE TABLE <w> (k datetime(6), b bit(9), y year, f char(5), n int, PRIMARY KEY (k, b, y, f))
INSERT INTO <t> VALUES ('a', '2020-01-01', 1), ('A ', '2020-01-02', 2), ('é', '0001-01-01', 3), ('', '9999-12-31', 4)
INSERT INTO <u> VALUES ('', 0), (x'00', 1), (x'0000', 2), ('a', 3), ('A', 4), (x'ff', 5)
INSERT INTO <v> VALUES (1.5, 'x', 1), (-1.5, 'y', 2), (0, 'z', 3)
INSERT INTO <w> VALUES ('2020-01-01 00:00:00.000001', b'1', 2020, 'ab', 1), ('1000-01-01', 511, 1901, 'a', 2), ('1000-01-01', 511, 1901, '', 3)
UPDATE <t> SET a = UPPER(a)
UPDATE <t> SET b = '2021-01-01', n = n + 1 WHERE a = 'É'
UPDATE <u> SET k = CONCAT(k, x'00') WHERE n = 5
UPDATE <u> SET n = n + 10
UPDATE <v> SET k = k + 0.00001, e = 'x' WHERE e = 'y'
UPDATE <w> SET n = 9 WHERE f = 'a'
DELETE FROM <t> WHERE a = 'a'
DELETE FROM <v> WHERE e = 'z'
DELETE FROM <w> WHERE f = ''

== keys without case
CREATE TABLE <t> (k varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, n int)
CREATE TABLE <u> (k char(10) CHARACTER SET latin1 COLLATE latin1_german2_ci PRIMARY KEY, n int)
INSERT INTO <t> VALUES ('abc', 1), ('Straße', 2), ('x', 3)
INSERT INTO <u> VALUES ('Müller', 1), ('b', 2)
UPDATE <t> SET k = 'ABC' WHERE k = 'abc'
UPDATE <t> SET k = 'X ' WHERE k = 'x'
UPDATE <u> SET k = 'MUELLER' WHERE k = 'müller'
REPLACE INTO <t> VALUES ('aBc', 10)
INSERT INTO <t> VALUES ('ABC', 5) ON DUPLICATE KEY UPDATE n = 55
DELETE FROM <u> WHERE k = 'B'

== no key
= stops t: has no primary key.*give it a primary key
= chosen ALTER TABLE <t> ADD COLUMN pk int AUTO_INCREMENT PRIMARY KEY
CREATE TABLE <t> (a int, v varchar(20))
INSERT INTO <t> VALUES (1, <text>), (1, <text>), (2, NULL)
INSERT INTO <t> SELECT * FROM <t>
UPDATE <t> SET a = 3 WHERE a = 2 LIMIT 1
DELETE FROM <t> WHERE a = 1 LIMIT 1
ALTER TABLE <t> ADD COLUMN n int DEFAULT 4

== unique keys
= stops u: has no primary key.*give it a primary key
= chosen ALTER TABLE <u> ADD COLUMN pk int AUTO_INCREMENT PRIMARY KEY
CREATE TABLE <t> (a int NOT NULL UNIQUE, v varchar(20))
CREATE TABLE <u> (a int UNIQUE, v varchar(20))
INSERT INTO <t> VALUES (1, <text>), (2, <text>)
INSERT INTO <u> VALUES (1, <text>), (NULL, <text>), (NULL, <text>)
UPDATE <t> SET a = a + 10 ORDER BY a DESC
UPDATE <u> SET v = <text>

== several unique keys
CREATE TABLE <t> (b int NOT NULL, a int NOT NULL UNIQUE, v varchar(20), UNIQUE (b, a))
INSERT INTO <t> VALUES (1, 1, <text>), (1, 2, <text>)
UPDATE <t> SET a = a + 10 ORDER BY a DESC
UPDATE <t> SET b = 7 WHERE a = 11
INSERT INTO <t> VALUES (9, 12, 'twice') ON DUPLICATE KEY UPDATE v = 'there'
DELETE FROM <t> WHERE b = 7

== a unique key that comes
CREATE TABLE <t> (a int NOT NULL, v varchar(20))
INSERT INTO <t> VALUES (1, <text>), (2, <text>)
ALTER TABLE <t> ADD UNIQUE (a)
INSERT INTO <t> VALUES (3, <text>)
DELETE FROM <t> WHERE a = 1

== engines
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20)) ENGINE = MyISAM
CREATE TABLE <u> (id int PRIMARY KEY, v varchar(20)) ENGINE = MEMORY
CREATE TABLE <v> (id int NOT NULL PRIMARY KEY, v text) ENGINE = InnoDB ROW_FORMAT = COMPRESSED
[mariadb] CREATE TABLE <w> (id int PRIMARY KEY, v varchar(20)) ENGINE = Aria
[mariadb] INSERT INTO <w> VALUES (1, <text>)
INSERT INTO <t> VALUES (1, <text>), (2, <text>)
INSERT INTO <u> VALUES (1, <text>), (2, <text>)
INSERT INTO <v> VALUES (1, <big>), (2, <big>)
UPDATE <t> SET v = 'm' WHERE id = 1
UPDATE <u> SET id = 5 WHERE id = 1
UPDATE <v> SET v = CONCAT(v, 'x')
DELETE FROM <u> WHERE id = 2
!INSERT INTO <t> VALUES (3, 'three'), (1, 'twice')
LOCK TABLES <t> WRITE, <u> WRITE
INSERT INTO <t> VALUES (4, <text>)
INSERT INTO <u> VALUES (4, <text>)
UNLOCK TABLES
ALTER TABLE <t> ENGINE = InnoDB
INSERT INTO <t> VALUES (7, <text>)

== defaults
CREATE TABLE <t> (id int AUTO_INCREMENT PRIMARY KEY, a timestamp DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, b datetime(6) DEFAULT NOW(6), c varchar(36) DEFAULT (UUID()), d int DEFAULT (1 + 2), e text DEFAULT ('text'), f int NOT NULL)
CREATE TABLE <u> (id SERIAL PRIMARY KEY, j json DEFAULT (JSON_OBJECT('a', 1)), k int DEFAULT 4, g int AS (k + 1) STORED, h varchar(20) AS (CONCAT('v', k)) VIRTUAL)
INSERT INTO <t> (f) VALUES (1), (2)
INSERT INTO <t> (id, f) VALUES (NULL, 3), (100, 4), (0, 5)
INSERT INTO <u> VALUES ()
INSERT INTO <u> () VALUES (), ()
UPDATE <t> SET f = f + 1
UPDATE <u> SET j = JSON_SET(COALESCE(j, '{}'), '$.b', 2), id = id + 50 ORDER BY id DESC
SET timestamp = 1000000000, insert_id = 5000
INSERT INTO <t> (f) VALUES (6)
SET timestamp = DEFAULT

== documents
CREATE TABLE <t> (id int PRIMARY KEY, j json)
INSERT INTO <t> VALUES (1, <json>), (2, <json>), (3, NULL), (4, '{"a": {"b": [1, 2, 3]}, "s": "x"}')
[mysql] UPDATE <t> SET j = JSON_SET(j, '$.a.b[1]', 99), id = 40 WHERE id = 4
UPDATE <t> SET j = JSON_REMOVE('{"a": 1, "b": 2}', '$.a') WHERE id = 3
UPDATE <t> SET j = JSON_ARRAY(1.5, 'é', NULL, TRUE, JSON_OBJECT('k', 'v')) WHERE id = 1
UPDATE <t> SET j = 'null' WHERE id = 2
INSERT INTO <t> VALUES (5, '[]'), (6, '"text"'), (7, '12345678901234567890123')

== spelt otherwise
create table <t> (ID int primary key, V varchar(20))
InSeRt /* a comment */ InTo <t> # to the end
  values (1, 'a; b'), (2, 'it''s'), (3, "double ""quoted"" x") -- and this
/*!50000 INSERT INTO <t> VALUES (4, 'executable') */
[mysql] INSERT /*!99999 INTO nothing */ INTO <t> VALUES (5, 'not executed')
[mariadb] INSERT /*!999999 INTO nothing */ INTO <t> VALUES (5, 'not executed')
  ;
update <db> . <t> set v = 'TRUNCATE TABLE x' where id = 1
/* DROP TABLE x */ delete from <t> where id = 2
aLtEr tAbLe <t> aDd cOlUmN /*! w */ int dEfAuLt 3
/*!40000 ALTER TABLE <t> DISABLE KEYS */
INSERT INTO <t> VALUES (6, 'w', 6)
truncate/**/table/**/<t>
(SELECT 1)
insert into <t>(id)values(7)
[mariadb] SET STATEMENT max_statement_time = 1000 FOR INSERT INTO <t> (id) VALUES (8)
[mariadb] SET STATEMENT sql_mode = '' FOR TRUNCATE <t>
[mysql] INSERT /*+ SET_VAR(sort_buffer_size = 1M) */ INTO <t> (id) VALUES (8)
insert into <t> (id) values (9)

== wide transactions
CREATE TABLE <t> (id int PRIMARY KEY, v mediumtext)
INSERT INTO <t> WITH RECURSIVE up (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM up WHERE i < 900) SELECT i, CONCAT('row ', i) FROM up
BEGIN
UPDATE <t> SET v = CONCAT(v, '!')
UPDATE <t> SET id = id + 10000 WHERE id <= 100
INSERT INTO <t> VALUES (5, REPEAT('0123456789', 100000))
DELETE FROM <t> WHERE id % 3 = 0
COMMIT
UPDATE <t> SET v = 'small' WHERE id = 5

== two tables by case
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20))
CREATE TABLE <tt> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <t> VALUES (1, 'small')
INSERT INTO <tt> VALUES (1, 'large'), (2, 'large')
TRUNCATE <tt>
INSERT INTO <tt> VALUES (3, 'again')
UPDATE <t> SET v = 'still'
DROP TABLE <tt>

== zero dates
= stops t: or_null
= rules {"staged_as": {"d": "or_null"}}
= plain
SET sql_mode = ''
CREATE TABLE <t> (id int PRIMARY KEY, d date, v varchar(20))
INSERT INTO <t> VALUES (1, '2020-01-01', 'a'), (2, '0000-00-00', 'b'), (3, '2020-00-01', 'c'), (4, '2021-01-01', 'd')
UPDATE <t> SET v = 'x' WHERE id = 4

== labels that are none
SET sql_mode = ''
CREATE TABLE <t> (id int PRIMARY KEY, e enum('a','b') NOT NULL, s set('x','y','z'))
INSERT INTO <t> VALUES (1, 'a', 'x,y'), (2, 'none', 'x,none'), (3, '', ''), (4, 2, 5), (5, 0, 'z,x')
UPDATE <t> SET s = s | 2, e = 'b' WHERE id = 1
ALTER TABLE <t> MODIFY s set('x','y','z','w'), MODIFY e enum('b','a','c')
INSERT INTO <t> VALUES (6, 'c', 'w')

== administration
CREATE TABLE <t> (id int PRIMARY KEY)
CREATE USER <o1>@localhost IDENTIFIED BY 'Secret-word-1'
GRANT SELECT, INSERT ON <db>.* TO <o1>@localhost
REVOKE INSERT ON <db>.* FROM <o1>@localhost
[mysql] SET PASSWORD FOR <o1>@localhost = 'Another-word-2'
[mariadb] SET PASSWORD FOR <o1>@localhost = PASSWORD('Another-word-2')
RENAME USER <o1>@localhost TO <o2>@localhost
DROP USER <o2>@localhost
CREATE ROLE <o3>
DROP ROLE <o3>
FLUSH BINARY LOGS
FLUSH PRIVILEGES
INSERT INTO <t> VALUES (1)
FLUSH ENGINE LOGS
SHOW TABLES
EXPLAIN SELECT * FROM <t>
INSERT INTO <t> VALUES (2)

== sequences
= only mariadb
CREATE SEQUENCE <o1> START WITH 5 INCREMENT BY 3
CREATE TABLE <t> (id int DEFAULT NEXTVAL(<o1>) PRIMARY KEY, v varchar(20))
INSERT INTO <t> (v) VALUES ('a'), ('b')
SELECT NEXT VALUE FOR <o1>
SELECT SETVAL(<o1>, 500)
INSERT INTO <t> (v) VALUES ('c')
ALTER SEQUENCE <o1> RESTART 1000
INSERT INTO <t> VALUES (NEXTVAL(<o1>), 'd')
INSERT INTO <t> VALUES (2, 'e')
RENAME TABLE <o1> TO <o2>
!INSERT INTO <t> (v) VALUES ('its default has gone')
CREATE OR REPLACE SEQUENCE <o2> MINVALUE -5 MAXVALUE 5 CYCLE NOCACHE
SELECT NEXTVAL(<o2>), PREVIOUS VALUE FOR <o2>
ALTER TABLE <o2> RENAME <o1>
CREATE TABLE <o3> LIKE <o1>
INSERT INTO <t> (v) VALUES ('f')
CREATE SEQUENCE IF NOT EXISTS <o3>
SELECT NEXTVAL(<o3>)
DROP TABLE <o3>
CREATE TEMPORARY SEQUENCE <o4>
SELECT NEXTVAL(<o4>)
DROP TEMPORARY SEQUENCE <o4>
CREATE TABLE <u> (id int PRIMARY KEY)
INSERT INTO <u> VALUES (1), (2)
CREATE OR REPLACE SEQUENCE <u>
SELECT NEXTVAL(<u>)
CREATE TABLE <v> (id int PRIMARY KEY)
INSERT INTO <v> VALUES (1), (2)
CREATE OR REPLACE TABLE <v> (next_not_cached_value bigint NOT NULL, minimum_value bigint NOT NULL, maximum_value bigint NOT NULL, start_value bigint NOT NULL, increment bigint NOT NULL, cache_size bigint unsigned NOT NULL, cycle_option tinyint unsigned NOT NULL, cycle_count bigint NOT NULL) SEQUENCE = 1
SELECT NEXTVAL(<v>)
DROP SEQUENCE IF EXISTS <u>, nothing_of_this_name

== tables like sequences
= only mariadb
= stops t: has no primary key.*give it a primary key
= chosen ALTER TABLE <t> ADD PRIMARY KEY (next_not_cached_value)
CREATE SEQUENCE <o1> START 100
CREATE TABLE <t> AS SELECT * FROM <o1>
UPDATE <t> SET increment = 7
INSERT INTO <t> VALUES (7, 1, 2, 3, 4, 5, 0, 0)
SELECT NEXTVAL(<o1>)
CREATE SEQUENCE <o2>
SELECT NEXTVAL(<o2>)
ALTER TABLE <o2> SEQUENCE = 0
DROP TABLE <o2>

== oracle mode
= only mariadb
SET sql_mode = 'ORACLE'
CREATE TABLE <t> (id int PRIMARY KEY, v varchar2(20), b raw(4), n number(10,2))
INSERT INTO <t> VALUES (1, 'a' || 'b', 'x', 1.5)
UPDATE <t> SET v = NULL
DELETE FROM <t> WHERE id = 5
TRUNCATE TABLE <t>
INSERT INTO <t> VALUES (2, '', 'y', 2)

== names
CREATE TABLE <t> (<c> int PRIMARY KEY, <d> varchar(20), <e> int)
INSERT INTO <t> (<c>, <d>) VALUES (1, <text>), (2, <text>), (3, <text>)
UPDATE <t> SET <d> = <text>, <e> = 7 WHERE <c> = 2
UPDATE <t> SET <c> = 30 WHERE <c> = 3
ALTER TABLE <t> ADD COLUMN <f> int DEFAULT 8
INSERT INTO <t> (<c>, <f>) VALUES (4, 4)
ALTER TABLE <t> RENAME COLUMN <e> TO <e2>
DELETE FROM <t> WHERE <c> = 1
UPDATE <t> SET <e2> = 9

== names of keys
CREATE TABLE <t> (<c> varchar(20), <d> int, <e> varchar(20), PRIMARY KEY (<d>, <c>))
INSERT INTO <t> VALUES ('a', 1, <text>), ('b', 2, <text>)
UPDATE <t> SET <c> = 'c', <e> = <text> WHERE <d> = 2
INSERT INTO <t> VALUES ('z', 9, NULL)
ALTER TABLE <t> RENAME COLUMN <c> TO <f>
DELETE FROM <t> WHERE <f> = 'a'

== odd grammar
[mysql] CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20), n int)
[mariadb] CREATE TABLE .<t> (id int PRIMARY KEY, v varchar(20), n int)
[mysql] INSERT INTO <t> VALUES (1, 'a', 1), (2, 'b', 2)
[mariadb] INSERT INTO .<t> VALUES (1, 'a', 1), (2, 'b', 2)
[mysql] ALTER TABLE <t> MODIFY COLUMN v varchar(30)
[mariadb] ALTER TABLE .<t> MODIFY COLUMN v varchar(30)
ALTER TABLE <t> ADD (a int DEFAULT 1, b varchar(9) CHARACTER SET latin1 DEFAULT _utf8mb4'x', INDEX (a))
ALTER TABLE <t> COLLATE = utf8mb4_bin ENGINE = `InnoDB` MAX_ROWS 100 COMMENT 'c'
[mysql] UPDATE <t> SET n = 5
[mariadb] UPDATE .<t> SET n = 5
[mysql] TRUNCATE <t>
[mariadb] TRUNCATE .<t>
INSERT INTO <t> (id) VALUES (3)
[mysql] RENAME TABLE <t> TO <u>
[mariadb] RENAME TABLE .<t> TO .<u>
INSERT INTO <u> (id) VALUES (4)
CREATE TABLE <v> (LIKE <u>)
INSERT INTO <v> SELECT * FROM <u>
[mysql] DROP TABLE <u> RESTRICT
[mariadb] DROP TABLE .<u> RESTRICT
CREATE TABLE <u> (id int PRIMARY KEY) SELECT 7 AS id
DROP TABLES IF EXISTS <u>, nothing_of_this_name CASCADE
CREATE TABLE <w> (id int PRIMARY KEY, PRIMARY_KEY int, `DROP` int DEFAULT 3, `PARTITION` int)
INSERT INTO <w> (id) VALUES (1)
ALTER TABLE <w> ALTER `DROP` SET DEFAULT 4, ADD INDEX `PARTITION` (`PARTITION`)
INSERT INTO <w> (id) VALUES (2)

== from another database
CREATE DATABASE <x1>
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20))
USE <x1>
CREATE TABLE <t> (id int PRIMARY KEY, other int)
INSERT INTO <db>.<t> VALUES (1, 'a'), (2, 'b')
INSERT INTO <t> VALUES (9, 9)
TRUNCATE <db>.<t>
INSERT INTO <db>.<t> VALUES (3, 'c')
ALTER TABLE <db>.<t> ADD COLUMN e int DEFAULT 5
ALTER TABLE <t> RENAME <db>.<u>
INSERT INTO <db>.<u> VALUES (8, 8)
RENAME TABLE <db>.<u> TO <u>
UPDATE <u> SET other = 7
CREATE TABLE <db>.<v> LIKE <u>
DROP TABLE <u>
INSERT INTO <db>.<v> VALUES (1, 1)

== waiting
= only mariadb
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <t> VALUES (1, 'a')
ALTER ONLINE TABLE <t> ADD COLUMN n int DEFAULT 3
ALTER IGNORE TABLE <t> WAIT 5 ADD COLUMN m int DEFAULT 4
ALTER TABLE IF EXISTS <t> NOWAIT MODIFY COLUMN IF EXISTS v varchar(40), DROP COLUMN IF EXISTS nothing
TRUNCATE TABLE <t> WAIT 5
INSERT INTO <t> (id) VALUES (2)
RENAME TABLE IF EXISTS <t> NOWAIT TO <u>, nothing_of_this_name TO nothing_else
INSERT INTO <u> (id) VALUES (3)
CREATE OR REPLACE TABLE <v> (id int PRIMARY KEY) SELECT 5 AS id
CREATE OR REPLACE TABLE <v> LIKE <u>
INSERT INTO <v> (id) VALUES (6)
DROP TABLE <u> WAIT 3
CREATE TABLE <w> (id int PRIMARY KEY, n int) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)
INSERT INTO <w> VALUES (1, 1), (11, 11)
ALTER TABLE <w> DROP PARTITION IF EXISTS p0, none

== nothing to do with tables
CREATE TABLE <t> (id int PRIMARY KEY)
CREATE SERVER <o1> FOREIGN DATA WRAPPER mysql OPTIONS (USER 'u', HOST '127.0.0.1', DATABASE 'd')
ALTER SERVER <o1> OPTIONS (USER 'other')
DROP SERVER <o1>
[mysql] CREATE SPATIAL REFERENCE SYSTEM 999001 NAME 'ours' DEFINITION 'GEOGCS["WGS 84",DATUM["World Geodetic System 1984",SPHEROID["WGS 84",6378137,298.257223563]],PRIMEM["Greenwich",0],UNIT["degree",0.017453292519943278],AXIS["Lat",NORTH],AXIS["Lon",EAST]]'
[mysql] DROP SPATIAL REFERENCE SYSTEM 999001
[mysql] CREATE USER <o2> IDENTIFIED BY 'one'
[mysql] ALTER USER <o2> IDENTIFIED BY 'two' RETAIN CURRENT PASSWORD
[mysql] ALTER USER <o2> DISCARD OLD PASSWORD
[mysql] ALTER USER <o2> ACCOUNT LOCK PASSWORD EXPIRE
[mysql] SET DEFAULT ROLE NONE TO <o2>
[mysql] DROP USER <o2>
[mysql] ANALYZE TABLE <t> UPDATE HISTOGRAM ON id WITH 4 BUCKETS
[mariadb] CREATE OR REPLACE USER <o2> IDENTIFIED BY 'one'
[mariadb] ALTER USER <o2> ACCOUNT LOCK
[mariadb] DROP USER IF EXISTS <o2>
[mariadb] ANALYZE TABLE <t> PERSISTENT FOR ALL
INSERT INTO <t> VALUES (1)
CREATE DEFINER = CURRENT_USER SQL SECURITY INVOKER VIEW <o3> AS SELECT 1 AS `TRUNCATE TABLE`
DROP VIEW IF EXISTS <o3>
CREATE DEFINER = CURRENT_USER PROCEDURE <o4>() COMMENT 'DROP TABLE x' SELECT 1
DROP PROCEDURE <o4>
INSERT INTO <t> VALUES (2)

== stored and virtual columns
CREATE TABLE <t> (a int, b int AS (a * 2) STORED, c int AS (a + 1) VIRTUAL, v varchar(20), d varchar(30) AS (CONCAT(v, '!')) STORED, PRIMARY KEY (a), INDEX (c))
[mysql] CREATE TABLE <u> (k int AS (n + 100) STORED, n int, PRIMARY KEY (k))
INSERT INTO <t> (a, v) VALUES (1, 'x'), (2, 'y')
[mysql] INSERT INTO <u> (n) VALUES (1), (2)
UPDATE <t> SET a = a + 10
[mysql] UPDATE <u> SET n = n + 10
UPDATE <t> SET v = NULL WHERE a = 11
ALTER TABLE <t> MODIFY b int AS (a * 2) STORED COMMENT 'x'
ALTER TABLE <t> ADD e int AS (b + c) VIRTUAL
[mysql] DELETE FROM <u> WHERE k = 111
INSERT INTO <t> (a, v) VALUES (5, 'z')

== statements on partitions
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20)) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN MAXVALUE)
INSERT INTO <t> PARTITION (p0, p1) VALUES (1, <text>), (11, <text>)
!INSERT INTO <t> PARTITION (p0) VALUES (2, 'undone'), (12, 'of another')
INSERT IGNORE INTO <t> PARTITION (p0) VALUES (3, 'kept'), (13, 'of another')
REPLACE INTO <t> PARTITION (p1) VALUES (11, 'again'), (15, 'new')
UPDATE <t> PARTITION (p1) SET v = 'p1'
!UPDATE <t> PARTITION (p1) SET id = 25 WHERE id = 15
DELETE FROM <t> PARTITION (p1) WHERE id = 11
LOAD DATA LOCAL INFILE <file> INTO TABLE <t> PARTITION (p2) (id, v) <<< 30\tthirty\n31\t\N\n
SELECT * FROM <t> PARTITION (p2) FOR UPDATE
ALTER TABLE <t> REORGANIZE PARTITION p0, p1 INTO (PARTITION p01 VALUES LESS THAN (20))
INSERT INTO <t> VALUES (40, 'after')

== made partitions into tables
= only mariadb
= plain
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20)) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN MAXVALUE)
INSERT INTO <t> VALUES (1, <text>), (11, <text>), (21, <text>)
!ALTER TABLE <t> CONVERT PARTITION p0 TO TABLE <u>
INSERT INTO <t> VALUES (12, 'after')
CREATE TABLE <v> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <v> VALUES (5, <text>), (6, <text>)
!ALTER TABLE <t> DROP PARTITION p2
!ALTER TABLE <t> CONVERT TABLE <v> TO PARTITION p3 VALUES LESS THAN (100)
INSERT INTO <t> VALUES (13, 'last')

== hidden columns and keys
= stops u: has no primary key.*give it a primary key
= chosen ALTER TABLE <u> ADD COLUMN pk int AUTO_INCREMENT PRIMARY KEY
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20) INVISIBLE DEFAULT 'hidden', n int)
CREATE TABLE <u> (a int)
[mysql] SET SESSION sql_generate_invisible_primary_key = 1
[mysql] CREATE TABLE <v> (a int, b varchar(20))
[mysql] INSERT INTO <v> VALUES (1, <text>), (1, <text>), (NULL, NULL)
[mysql] UPDATE <v> SET a = a + 1
[mysql] DELETE FROM <v> WHERE my_row_id = 2
[mysql] ALTER TABLE <v> ALTER COLUMN my_row_id SET VISIBLE
[mysql] INSERT INTO <v> (a) VALUES (7)
[mysql] CREATE TABLE <w> LIKE <v>
[mysql] INSERT INTO <w> (a) SELECT a FROM <v>
INSERT INTO <t> VALUES (1, 1), (2, 2)
INSERT INTO <t> (id, v, n) VALUES (3, 'given', 3)
INSERT INTO <u> VALUES (1)
UPDATE <t> SET v = 'changed' WHERE id = 1
ALTER TABLE <t> ADD COLUMN e int INVISIBLE DEFAULT 4
REPLACE INTO <t> VALUES (3, 33)
[mariadb] ALTER TABLE <t> MODIFY v varchar(30)
[mysql] ALTER TABLE <t> ALTER COLUMN v SET VISIBLE
INSERT INTO <t> (id) VALUES (9)

== indexes
CREATE TABLE <t> (id int PRIMARY KEY, a int, v varchar(200), j json, g point NOT NULL)
INSERT INTO <t> VALUES (1, 1, <text>, '[1, 2, 3]', POINT(1, 2)), (2, 2, <text>, '[4]', POINT(0, 0))
CREATE INDEX <o1> ON <t> (v(10), a DESC)
CREATE SPATIAL INDEX <o2> ON <t> (g)
[mysql] CREATE INDEX <o3> ON <t> ((a + 1), (LOWER(v)))
[mysql] CREATE INDEX <o4> ON <t> ((CAST(j AS UNSIGNED ARRAY)))
[mysql] CREATE UNIQUE INDEX <o5> ON <t> (a, v) INVISIBLE ALGORITHM = INPLACE LOCK = NONE
[mysql] ALTER TABLE <t> ALTER INDEX <o5> VISIBLE
[mysql] ALTER TABLE <t> RENAME INDEX <o5> TO <o6>
[mariadb] CREATE OR REPLACE INDEX <o3> ON <t> (a) WAIT 5
[mariadb] ALTER TABLE <t> RENAME INDEX <o3> TO <o6>
[mariadb] ALTER TABLE <t> ALTER INDEX <o6> IGNORED
[mariadb] ALTER TABLE <t> ADD COLUMN u varchar(400), ADD UNIQUE <o7> (u)
UPDATE <t> SET a = a + 10, j = '[7, 7]'
ALTER TABLE <t> DROP INDEX <o1>, DROP KEY <o2>
DROP INDEX <o6> ON <t>
INSERT INTO <t> (id, a, g) VALUES (3, 3, POINT(5, 5))
ALTER TABLE <t> ADD FULLTEXT KEY <o8> (v), ADD INDEX (a) USING BTREE COMMENT 'c'
UPDATE <t> SET v = 'found words' WHERE id = 3
DELETE FROM <t> WHERE id = 1

== checks and constraints
CREATE TABLE <t> (id int PRIMARY KEY, n int, v varchar(20), CONSTRAINT <o1> CHECK (n > 0), UNIQUE KEY <o2> (v))
INSERT INTO <t> VALUES (1, 1, 'a'), (2, 2, 'b')
!INSERT INTO <t> VALUES (3, 3, 'c'), (4, -1, 'd')
INSERT IGNORE INTO <t> VALUES (5, -1, 'e'), (6, 6, 'f')
!UPDATE <t> SET n = n - 1 ORDER BY id DESC
UPDATE IGNORE <t> SET v = 'a'
ALTER TABLE <t> DROP CONSTRAINT <o1>
UPDATE <t> SET n = -n
[mysql] ALTER TABLE <t> ADD CONSTRAINT <o3> CHECK (n < 100) NOT ENFORCED
[mysql] ALTER TABLE <t> ALTER CHECK <o3> NOT ENFORCED
[mysql] ALTER TABLE <t> DROP CHECK <o3>
[mysql] ALTER TABLE <t> DROP CONSTRAINT <o2>
[mariadb] ALTER TABLE <t> DROP CONSTRAINT IF EXISTS <o2>, DROP INDEX IF EXISTS <o2>
INSERT INTO <t> VALUES (7, 7, 'a'), (8, 8, 'a')

== images in part
= may stop t: set binlog_row_image = FULL for every session
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20), n int, b text)
INSERT INTO <t> VALUES (1, 'a', 1, <big>), (2, 'b', 2, <big>), (3, 'c', 3, NULL)
SET SESSION binlog_row_image = MINIMAL
UPDATE <t> SET v = 'in part' WHERE id = 1
INSERT INTO <t> (id) VALUES (4)
DELETE FROM <t> WHERE id = 2
SET SESSION binlog_row_image = NOBLOB
UPDATE <t> SET n = 33 WHERE id = 3
SET SESSION binlog_row_image = FULL
UPDATE <t> SET n = n + 1

== documents in parts
= only mysql
= may stop t: set binlog_row_value_options = '' for every session
CREATE TABLE <t> (id int PRIMARY KEY, j json)
INSERT INTO <t> VALUES (1, JSON_OBJECT('a', REPEAT('x', 500), 'b', 1)), (2, '{"b": 2}')
SET SESSION binlog_row_value_options = 'PARTIAL_JSON'
UPDATE <t> SET j = JSON_SET(j, '$.b', 7)
UPDATE <t> SET j = JSON_REPLACE(JSON_REMOVE(j, '$.a'), '$.b', 8) WHERE id = 1
SET SESSION binlog_row_value_options = ''
UPDATE <t> SET j = JSON_SET(j, '$.c', 9)

== triggers that refuse and follow
CREATE TABLE <t> (id int PRIMARY KEY, n int)
CREATE TABLE <u> (id int PRIMARY KEY, times int DEFAULT 0)
CREATE TRIGGER <o1> BEFORE INSERT ON <t> FOR EACH ROW BEGIN IF NEW.n < 0 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'; END IF; END
CREATE TRIGGER <o2> AFTER INSERT ON <t> FOR EACH ROW INSERT INTO <u> VALUES (NEW.id, 1) ON DUPLICATE KEY UPDATE times = times + 1
CREATE TRIGGER <o3> AFTER INSERT ON <t> FOR EACH ROW FOLLOWS <o2> UPDATE <u> SET times = times * 10 WHERE id = NEW.id
CREATE TRIGGER <o4> BEFORE INSERT ON <t> FOR EACH ROW PRECEDES <o1> SET NEW.n = NEW.n + 1
INSERT INTO <t> VALUES (1, 1), (2, 2)
!INSERT INTO <t> VALUES (3, 3), (4, -9)
INSERT IGNORE INTO <t> VALUES (2, 2), (5, 5)
REPLACE INTO <t> VALUES (1, 11)
LOCK TABLES <t> WRITE, <u> WRITE
INSERT INTO <t> VALUES (6, 6)
DELETE FROM <t> WHERE id = 1
UNLOCK TABLES
START TRANSACTION
INSERT INTO <t> VALUES (7, 7)
SAVEPOINT a
INSERT INTO <t> VALUES (8, 8)
ROLLBACK TO a
INSERT INTO <t> VALUES (9, 9)
COMMIT

== made once more
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <t> VALUES (1, <text>)
CREATE TABLE IF NOT EXISTS <t> (id int PRIMARY KEY) SELECT 7 AS id
CREATE TABLE <u> (id int PRIMARY KEY) REPLACE SELECT 1 AS id, CAST('one' AS char(40)) AS v UNION ALL SELECT 1, 'uno'
CREATE TABLE <v> (PRIMARY KEY (id)) AS WITH a AS (SELECT id, v FROM <u>) SELECT * FROM a
INSERT INTO <v> SELECT id + 5, v FROM <u> UNION SELECT id + 6, v FROM <t>
!CREATE TABLE <w> (id int PRIMARY KEY) SELECT 1 AS id UNION ALL SELECT 1
CREATE TABLE <w> (id int PRIMARY KEY)
INSERT INTO <w> VALUES (5)
DROP TABLE <u>, <w>
CREATE TABLE <u> (id int PRIMARY KEY, n int) COMMENT 'CREATE TABLE x SELECT 1'
INSERT INTO <u> VALUES (1, 1)
CREATE TABLE <w> LIKE <u>
INSERT INTO <w> VALUES (2, 2)

== reads and locks
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20), n int)
INSERT INTO <t> VALUES (1, <text>, 1), (2, <text>, 2), (3, <text>, 3)
HANDLER <t> OPEN
HANDLER <t> READ FIRST
HANDLER <t> READ `PRIMARY` = (2)
HANDLER <t> CLOSE
BEGIN
SELECT id, v INTO @a, @b FROM <t> WHERE id = 1 FOR UPDATE
[mysql] SELECT * FROM <t> WHERE id = 2 FOR SHARE OF <t> SKIP LOCKED
[mariadb] SELECT * FROM <t> WHERE id = 2 LOCK IN SHARE MODE
UPDATE <t> SET v = CONCAT(@b, '?') WHERE id = @a
COMMIT AND CHAIN
UPDATE <t> SET n = @n := COALESCE(@n, 100) + 1
COMMIT
LOCK TABLES <t> READ
!UPDATE <t> SET n = 0
UNLOCK TABLES
FLUSH TABLES <t> FOR EXPORT
UNLOCK TABLES
SELECT GET_LOCK('ours', 1), RELEASE_LOCK('ours')
[mysql] UPDATE <t> AS a, LATERAL (SELECT a.id * 2 AS d) AS b SET a.n = b.d
UPDATE <t> AS a JOIN (SELECT MAX(n) AS m FROM <t>) AS b SET a.n = b.m WHERE a.id = 3
[mysql] INSERT DELAYED INTO <t> VALUES (4, <text>, 4)
INSERT INTO <t> (id, n) SELECT id + 10, ROW_NUMBER() OVER (ORDER BY id) FROM <t>
CHECK TABLE <t> EXTENDED
DESCRIBE <t>

== tablespaces
= only mysql
CREATE TABLESPACE <o1> ADD DATAFILE '<o1>.ibd'
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20)) TABLESPACE <o1>
INSERT INTO <t> VALUES (1, <text>), (2, <text>)
ALTER TABLESPACE <o1> RENAME TO <o2>
ALTER TABLE <t> TABLESPACE innodb_file_per_table
UPDATE <t> SET v = <text> WHERE id = 1
DROP TABLESPACE <o2>
ALTER TABLE <t> AUTOEXTEND_SIZE = 4M, KEY_BLOCK_SIZE = 8, ROW_FORMAT = COMPRESSED
INSERT INTO <t> VALUES (3, <text>)

== columns changed at once
= only mysql
CREATE TABLE <t> (id int PRIMARY KEY, a int, b varchar(20))
INSERT INTO <t> VALUES (1, 1, <text>), (2, 2, <text>)
ALTER TABLE <t> ADD COLUMN c int DEFAULT 3 FIRST, ADD COLUMN d int DEFAULT 4, ALGORITHM = INSTANT
UPDATE <t> SET a = 11 WHERE id = 1
ALTER TABLE <t> RENAME COLUMN a TO x, ALGORITHM = INSTANT
INSERT INTO <t> (id, x) VALUES (3, 3)
ALTER TABLE <t> RENAME COLUMN x TO y, RENAME COLUMN b TO x, ADD COLUMN e varchar(9) DEFAULT 'e' AFTER id
INSERT INTO <t> (id, x) VALUES (4, 'x')
UPDATE <t> SET y = 7 WHERE id = 2

== unreadable tables
= only mariadb
= stops t: system-versioned.*DROP SYSTEM VERSIONING
= stops u: COMPRESSED
= chosen ALTER TABLE <u> MODIFY v varchar(100)
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20)) WITH SYSTEM VERSIONING
CREATE TABLE <u> (id int PRIMARY KEY, v varchar(100) COMPRESSED)
CREATE TABLE <v> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <t> VALUES (1, 'a'), (2, 'b')
INSERT INTO <u> VALUES (1, <text>), (2, <text>)
INSERT INTO <v> VALUES (1, 'a'), (2, 'b')
UPDATE <t> SET v = 'x' WHERE id = 1
DELETE FROM <t> WHERE id = 2
SELECT * FROM <t> FOR SYSTEM_TIME ALL
DELETE HISTORY FROM <t>
UPDATE <u> SET v = <text>
ALTER TABLE <v> ADD SYSTEM VERSIONING
UPDATE <v> SET v = 'x' WHERE id = 1
ALTER TABLE <v> DROP SYSTEM VERSIONING
INSERT INTO <v> VALUES (3, 'c')

== periods
= only mariadb
CREATE TABLE <t> (id int, s date, e date, v varchar(20), PERIOD FOR p (s, e), PRIMARY KEY (id, s))
INSERT INTO <t> VALUES (1, '2000-01-01', '2001-01-01', 'a'), (2, '2000-01-01', '2010-01-01', 'b')
UPDATE <t> FOR PORTION OF p FROM '2000-03-01' TO '2000-06-01' SET v = 'portion' WHERE id = 1
DELETE FROM <t> FOR PORTION OF p FROM '2002-01-01' TO '2003-01-01'
ALTER TABLE <t> ADD COLUMN n int DEFAULT 5
UPDATE <t> FOR PORTION OF p FROM '2005-01-01' TO '2006-01-01' SET n = 9, id = id + 100
ALTER TABLE <t> DROP PERIOD FOR p
INSERT INTO <t> VALUES (3, '2020-01-01', '2019-01-01', 'backwards', 1)
CREATE TABLE <u> (id int, s datetime(6), e datetime(6), PERIOD FOR p (s, e), PRIMARY KEY (id, p WITHOUT OVERLAPS))
INSERT INTO <u> VALUES (1, '2000-01-01', '2000-02-01'), (1, '2000-02-01', '2000-03-01')
DELETE FROM <u> FOR PORTION OF p FROM '2000-01-10' TO '2000-02-10'

== other engines
[mysql] CREATE TABLE <t> (id int AUTO_INCREMENT PRIMARY KEY, v varchar(40)) ENGINE = ARCHIVE
[mysql] INSERT INTO <t> (v) VALUES (<text>), (<text>)
[mysql] OPTIMIZE TABLE <t>
CREATE TABLE <u> (id int PRIMARY KEY, v varchar(20)) ENGINE = MyISAM MAX_ROWS = 1000 DELAY_KEY_WRITE = 1 CHECKSUM = 1
INSERT INTO <u> VALUES (1, <text>), (2, <text>), (3, <text>)
BEGIN
UPDATE <u> SET v = 'not undone' WHERE id = 1
!INSERT INTO <u> VALUES (4, 'stays'), (1, 'twice')
ROLLBACK
REPAIR TABLE <u>
ALTER TABLE <u> ENGINE = MEMORY
DELETE FROM <u> WHERE id = 2
[mariadb] ALTER TABLE <u> ENGINE = Aria TRANSACTIONAL = 0 PAGE_CHECKSUM = 0
[mariadb] UPDATE <u> SET v = 'aria'
ALTER TABLE <u> ENGINE = InnoDB
UPDATE <u> SET id = id + 10

== engines without rows
= stops t: keeps no rows.*ENGINE = InnoDB
= may stop u: through the MERGE table
= may stop v: through the MERGE table
CREATE TABLE <u> (id int PRIMARY KEY, v varchar(20)) ENGINE = MyISAM
CREATE TABLE <v> (id int PRIMARY KEY, v varchar(20)) ENGINE = MyISAM
INSERT INTO <u> VALUES (1, <text>), (2, <text>)
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20)) ENGINE = MERGE UNION = (<u>, <v>) INSERT_METHOD = LAST
INSERT INTO <t> VALUES (3, <text>)
UPDATE <t> SET v = 'by all'
DELETE FROM <u> WHERE id = 1

== engines without any rows
= only mysql
= stops t: keeps no rows.*ENGINE = InnoDB
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20)) ENGINE = BLACKHOLE
INSERT INTO <t> VALUES (1, <text>), (2, <text>)

== columns added in a time zone
CREATE TABLE <t> (id int PRIMARY KEY, at timestamp NULL DEFAULT NULL, dt datetime DEFAULT NULL)
SET time_zone = '+05:45'
INSERT INTO <t> VALUES (1, '2024-02-29 12:00:00', '2024-02-29 12:00:00'), (2, NULL, NULL)
ALTER TABLE <t> ADD COLUMN born timestamp NOT NULL DEFAULT '2000-01-01 10:00:00'
?UPDATE <t> SET dt = at WHERE id = 1
?ALTER TABLE <t> ADD COLUMN until datetime NOT NULL DEFAULT '2000-01-01 10:00:00'
SET time_zone = '-11:00'
?INSERT INTO <t> (id, at) VALUES (3, '1999-12-31 23:59:59')
?ALTER TABLE <t> MODIFY at datetime NULL
?ALTER TABLE <t> MODIFY dt timestamp NULL
?ALTER TABLE <t> ADD COLUMN seen timestamp NULL DEFAULT '2020-02-02 02:02:02'
?INSERT INTO <t> (id) VALUES (4)
?UPDATE <t> SET at = dt WHERE id = 2
SET time_zone = DEFAULT

== columns added in an sql_mode
= plain
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20))
INSERT INTO <t> VALUES (1, 'a'), (2, 'b')
SET sql_mode = 'NO_BACKSLASH_ESCAPES'
?ALTER TABLE <t> ADD COLUMN a1 varchar(20) NOT NULL DEFAULT 'x\\y\n'
?INSERT INTO <t> (id, v) VALUES (3, 'it\\')
SET sql_mode = 'ANSI_QUOTES'
?ALTER TABLE <t> ADD COLUMN "a2" varchar(20) NOT NULL DEFAULT 'q"q'
SET sql_mode = ''
!?ALTER TABLE <t> ADD COLUMN a3 varchar(3) NOT NULL DEFAULT 'it''s'
?ALTER TABLE <t> ADD COLUMN a4 varchar(20) NOT NULL DEFAULT 'x\\y\'z\n\t%_\%'
?ALTER TABLE <t> ADD COLUMN a5 int NOT NULL DEFAULT '12', ADD COLUMN a6 tinyint NOT NULL
?ALTER TABLE <t> ADD COLUMN a7 char(5) NOT NULL DEFAULT 'ab  ', ADD COLUMN a8 decimal(6,2) NOT NULL DEFAULT 1.005
!?ALTER TABLE <t> ADD COLUMN a9 tinyint NOT NULL DEFAULT 1e2, ADD COLUMN a10 bigint NOT NULL DEFAULT 0x10
SET sql_mode = 'REAL_AS_FLOAT'
?ALTER TABLE <t> ADD COLUMN a11 real NOT NULL DEFAULT 0.1
SET sql_mode = DEFAULT
SET NAMES latin1
{latin-1} ?ALTER TABLE <t> ADD COLUMN a12 varchar(20) NOT NULL DEFAULT 'é'
!{latin-1} ?INSERT INTO <t> (id, v) VALUES (4, 'ü')
?ALTER TABLE <t> ADD COLUMN a13 varchar(20) NOT NULL DEFAULT x'c3a9'
?ALTER TABLE <t> ADD COLUMN a14 varchar(20) CHARACTER SET utf8mb4 NOT NULL DEFAULT _utf8mb4'abc'
SET NAMES utf8mb4
?UPDATE <t> SET v = 'u' WHERE id = 2

== rows that an index drops
= only mariadb
CREATE TABLE <t> (id int PRIMARY KEY, n int, v varchar(20))
CREATE TABLE <u> (id int PRIMARY KEY, n int)
INSERT INTO <t> VALUES (1, 1, <text>), (2, 1, <text>), (3, 2, <text>), (4, 2, <text>)
INSERT INTO <u> VALUES (1, 1000), (2, -1000), (3, 3)
ALTER IGNORE TABLE <t> ADD UNIQUE KEY (n)
?INSERT INTO <t> VALUES (5, 5, <text>)
?ALTER IGNORE TABLE <u> MODIFY COLUMN n tinyint
?INSERT INTO <u> VALUES (4, 4)
?ALTER IGNORE TABLE <t> DROP PRIMARY KEY, ADD PRIMARY KEY (n)
?UPDATE <t> SET v = 'u' WHERE id = 1

== compound statements
= only mariadb
CREATE TABLE <t> (id int PRIMARY KEY, n int)
BEGIN NOT ATOMIC DECLARE i int DEFAULT 0; WHILE i < 20 DO INSERT INTO <t> VALUES (i, i * i); SET i = i + 1; END WHILE; END
BEGIN NOT ATOMIC FOR i IN 100..110 DO INSERT INTO <t> VALUES (i, 0); END FOR; END
BEGIN NOT ATOMIC DECLARE EXIT HANDLER FOR SQLEXCEPTION ROLLBACK; START TRANSACTION; INSERT INTO <t> VALUES (500, 1); INSERT INTO <t> VALUES (500, 2); COMMIT; END
BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; INSERT INTO <t> VALUES (600, 1); INSERT INTO <t> VALUES (600, 2); INSERT INTO <t> VALUES (601, 3); END
?BEGIN NOT ATOMIC FOR r IN (SELECT id FROM <t> WHERE id < 5) DO UPDATE <t> SET n = n + 1 WHERE id = r.id; END FOR; END
?SET STATEMENT unique_checks = 0, foreign_key_checks = 0 FOR UPDATE <t> SET n = 1 WHERE id > 100
?BEGIN NOT ATOMIC TRUNCATE TABLE <t>; INSERT INTO <t> VALUES (1, 1); END
