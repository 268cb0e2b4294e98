WITH commits AS (
    SELECT
        shard_id, namespace, group_id, seq, at_ms,
        at_ms - at_ms % 3600000 AS hour,
        number,
        payload -> 'offsets' -> number ->> 0 AS topic,
        CAST(payload -> 'offsets' -> number ->> 1 AS INTEGER) AS partition,
        CAST(payload -> 'offsets' -> number ->> 2 AS BIGINT) AS committed
    FROM lines, range(CAST(json_array_length(payload -> 'offsets') AS BIGINT)) AS numbers (number)
    WHERE kind = 'offsets_committed'
),
deletions AS (
    SELECT
        shard_id, namespace, group_id, seq,
        payload -> 'partitions' -> number ->> 0 AS topic,
        CAST(payload -> 'partitions' -> number ->> 1 AS INTEGER) AS partition
    FROM lines, range(CAST(json_array_length(payload -> 'partitions') AS BIGINT)) AS numbers (number)
    WHERE kind = 'offsets_deleted'
    UNION ALL
    SELECT shard_id, namespace, group_id, seq, NULL, NULL FROM lines WHERE kind = 'group_deleted'
),
with_deletion AS (
    SELECT
        c.*,
        (
            SELECT min(d.seq)
            FROM deletions AS d
            WHERE
                (d.shard_id, d.namespace, d.group_id) = (c.shard_id, c.namespace, c.group_id)
                AND (d.topic IS NULL OR (d.topic, d.partition) = (c.topic, c.partition))
                AND d.seq > c.seq
        ) AS deleted_by
    FROM commits AS c
),
with_former AS (
    SELECT
        *,
        lag(hour) OVER of_partition AS former_hour,
        lag(at_ms) OVER of_partition AS former_ms,
        lag(committed) OVER of_partition AS former
    FROM with_deletion
    WINDOW of_partition AS (
        PARTITION BY shard_id, namespace, group_id, topic, partition, deleted_by ORDER BY seq, number
    )
),
numbered AS (
    SELECT
        *,
        sum(CAST(hour IS DISTINCT FROM former_hour AS INTEGER)) OVER (
            PARTITION BY shard_id, namespace, group_id, topic, partition, deleted_by ORDER BY seq, number
        ) AS row_number
    FROM with_former
),
whole AS (
    SELECT
        shard_id, namespace, group_id, topic, partition, deleted_by, row_number, hour,
        arg_min(committed, (seq, number)) AS first_offset,
        arg_max(committed, (seq, number)) AS last_offset,
        count(*) AS commits,
        arg_min(at_ms, (seq, number)) AS first_at,
        arg_max(at_ms, (seq, number)) AS last_at,
        max(greatest(0, at_ms - coalesce(former_ms, at_ms))) AS stall_ms,
        count(*) FILTER (committed < former) AS went_back
    FROM numbered
    GROUP BY shard_id, namespace, group_id, topic, partition, deleted_by, row_number, hour
)
SELECT
    deleted_by IS NOT NULL
    OR row_number < max(row_number) OVER (PARTITION BY shard_id, namespace, group_id, topic, partition, deleted_by)
        AS complete,
    namespace, group_id, topic, partition, hour, first_offset, last_offset, commits, first_at, last_at,
    CASE WHEN last_at > first_at THEN (last_offset - first_offset) * 1000 / (last_at - first_at) END AS rate_per_s,
    stall_ms,
    went_back
FROM whole
