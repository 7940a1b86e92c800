-- What the container does once, when its data is new: a small shop, and the user of the capture with just its rights.
\set ON_ERROR_STOP on
\getenv password DBLOG_PASSWORD
CREATE TABLE IF NOT EXISTS orders (
    id BIGINT NOT NULL PRIMARY KEY, customer VARCHAR(40) NOT NULL, total DECIMAL(14,2) NOT NULL, status VARCHAR(12) NOT NULL
);
CREATE TABLE IF NOT EXISTS customers (code VARCHAR(40) NOT NULL PRIMARY KEY, name VARCHAR(120) NOT NULL, joined DATE NOT NULL);
INSERT INTO customers VALUES ('c-1', 'Ada', '2026-01-05'), ('c-2', 'Blaise', '2026-02-17');
INSERT INTO orders VALUES (1, 'c-1', 19.90, 'paid'), (2, 'c-2', 5.00, 'new'), (3, 'c-1', 102.45, 'sent');
CREATE ROLE "dblog" LOGIN REPLICATION PASSWORD :'password';
GRANT CONNECT, CREATE ON DATABASE "shop" TO "dblog";
GRANT USAGE, CREATE ON SCHEMA public TO "dblog";
GRANT SELECT ON ALL TABLES IN SCHEMA public TO "dblog";
ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO "dblog";
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO "dblog";
CREATE PUBLICATION "dblog_shop_postgres" FOR ALL TABLES WITH (publish_via_partition_root = true);
