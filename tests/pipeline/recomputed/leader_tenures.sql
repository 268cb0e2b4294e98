WITH RECURSIVE said AS (
    SELECT
        shard_id, namespace, group_id, at_ms, kind,
        payload ->> 'leader_id' AS named,
        payload ->> 'member_id' AS gone,
        payload ->> 'new_member_id' AS successor,
        row_number() OVER (PARTITION BY shard_id, namespace, group_id ORDER BY seq) AS number
    FROM lines
    WHERE
        kind IN (
            'generation_completed', 'group_emptied', 'group_deleted',
            'member_left', 'member_expired', 'member_removed', 'member_fenced'
        )
),
led AS (
    SELECT DISTINCT shard_id, namespace, group_id, 0 AS number, 0::BIGINT AS at_ms, '' AS kind, '' AS leader_id, 0 AS tenure
    FROM said
    UNION ALL
    SELECT
        shard_id, namespace, group_id, number, at_ms, kind, leader_id,
        tenure + CAST(leader_id <> '' AND leader_id <> former_id AS INTEGER)
    FROM (
        SELECT
            s.shard_id, s.namespace, s.group_id, s.number, s.at_ms, s.kind, l.leader_id AS former_id, l.tenure,
            CASE
                WHEN s.kind = 'generation_completed' THEN s.named
                WHEN s.kind IN ('group_emptied', 'group_deleted') THEN ''
                WHEN s.gone <> l.leader_id THEN l.leader_id
                WHEN s.kind = 'member_fenced' THEN s.successor
                ELSE ''
            END AS leader_id
        FROM led AS l
        INNER JOIN said AS s
            ON
                (s.shard_id, s.namespace, s.group_id) = (l.shard_id, l.namespace, l.group_id)
                AND s.number = l.number + 1
    )
),
tenures AS (
    SELECT
        shard_id, namespace, group_id, tenure, leader_id,
        arg_min(at_ms, number) AS from_at,
        count(*) FILTER (kind = 'generation_completed') AS generations,
        max(number) + 1 AS end_number
    FROM led
    WHERE leader_id <> ''
    GROUP BY shard_id, namespace, group_id, tenure, leader_id
)
SELECT
    s.at_ms IS NOT NULL AS complete,
    t.namespace, t.group_id, t.leader_id, t.from_at,
    s.at_ms AS to_at,
    greatest(0, s.at_ms - t.from_at) AS ms,
    t.generations,
    CASE
        WHEN t.tenure > 1
            THEN greatest(
                0, t.from_at - lag(s.at_ms) OVER (PARTITION BY t.shard_id, t.namespace, t.group_id ORDER BY t.tenure)
            )
    END AS gap_ms,
    CASE s.kind
        WHEN 'generation_completed' THEN 'succeeded'
        WHEN 'member_left' THEN 'left'
        WHEN 'member_expired' THEN 'expired'
        WHEN 'member_removed' THEN 'removed'
        WHEN 'member_fenced' THEN 'replaced'
        WHEN 'group_emptied' THEN 'emptied'
        WHEN 'group_deleted' THEN 'emptied'
    END AS ended_by
FROM tenures AS t
LEFT JOIN said AS s
    ON (s.shard_id, s.namespace, s.group_id) = (t.shard_id, t.namespace, t.group_id) AND s.number = t.end_number
