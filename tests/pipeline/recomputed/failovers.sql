WITH owners AS (
    SELECT
        shard_id,
        seq,
        at_ms,
        kind,
        payload ->> 'replica_id' AS replica_id,
        CAST(payload ->> 'epoch' AS BIGINT) AS epoch,
        lag(kind) OVER of_shard AS kind_before,
        lag(at_ms) OVER of_shard AS before_ms
    FROM lines
    WHERE kind IN ('shard_acquired', 'shard_released')
    WINDOW of_shard AS (PARTITION BY shard_id ORDER BY seq)
)
SELECT
    TRUE AS complete,
    shard_id,
    epoch,
    coalesce(lag(replica_id) OVER (PARTITION BY shard_id ORDER BY seq), '') AS from_replica,
    replica_id AS to_replica,
    at_ms AS at,
    CASE WHEN kind_before = 'shard_released' THEN greatest(0, at_ms - before_ms) END AS gap_ms,
    coalesce(kind_before = 'shard_released', FALSE) AS graceful
FROM owners
WHERE kind = 'shard_acquired'
