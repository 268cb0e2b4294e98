WITH refused AS (
    SELECT
        *,
        payload ->> 'member_id' AS member_id,
        payload ->> 'operation' AS operation,
        payload ->> 'error' AS error,
        at_ms - at_ms % 3600000 AS hour,
        lag(at_ms - at_ms % 3600000) OVER (PARTITION BY shard_id, namespace, group_id ORDER BY seq) AS former_hour
    FROM lines
    WHERE kind = 'request_fenced'
),
numbered AS (
    SELECT
        *,
        sum(CAST(hour IS DISTINCT FROM former_hour AS INTEGER)) OVER (
            PARTITION BY shard_id, namespace, group_id ORDER BY seq
        ) AS hour_number
    FROM refused
),
counted AS (
    SELECT
        shard_id, namespace, group_id, hour_number, hour, member_id, operation, error,
        min(seq) AS first_seq,
        arg_min(at_ms, seq) AS first_at,
        arg_min(payload ->> 'group_instance_id', seq) AS group_instance_id,
        count(*) AS times
    FROM numbered
    GROUP BY shard_id, namespace, group_id, hour_number, hour, member_id, operation, error
)
SELECT
    hour_number < max(hour_number) OVER (PARTITION BY shard_id, namespace, group_id) AS complete,
    namespace, group_id, member_id, group_instance_id, operation, error, hour, first_at, times,
    (
        SELECT CASE WHEN count(*) > 0 THEN greatest(0, c.first_at - arg_max(l.at_ms, l.seq)) END
        FROM lines AS l
        WHERE
            l.kind IN ('member_left', 'member_expired', 'member_removed', 'member_fenced')
            AND (l.shard_id, l.namespace, l.group_id) = (c.shard_id, c.namespace, c.group_id)
            AND (l.payload ->> 'member_id') = c.member_id
            AND l.seq < c.first_seq
    ) AS after_ms
FROM counted AS c
