CREATE TABLE record (
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    parent TEXT NOT NULL,
    id TEXT NOT NULL,
    position BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (kind, tenant, parent, id)
);
CREATE INDEX record_order ON record (kind, tenant, parent, position, bytes);
