WITH said AS (
    SELECT namespace, group_id, at_ms, seq, number, payload -> 'members' -> number AS member
    FROM lines, range(CAST(json_array_length(payload -> 'members') AS BIGINT)) AS numbers (number)
    WHERE kind = 'session_stats'
),
counted AS (
    SELECT
        *,
        list_transform(
            range(96),
            class -> coalesce(
                list_sum(
                    list_transform(
                        CAST(member -> 5 AS BIGINT[][]), pair -> CASE WHEN pair[1] = class THEN pair[2] ELSE 0 END
                    )
                ),
                0
            )
        ) AS gaps
    FROM said
),
totals AS (SELECT *, list_sum(gaps) AS heartbeats FROM counted),
ends AS (
    SELECT
        class,
        CASE WHEN class < 4 THEN class ELSE ((class % 4 + 5) << (class // 4 - 1)) - 1 END AS end_ms
    FROM range(96) AS classes (class)
),
quantiles AS (
    SELECT t.namespace, t.group_id, t.seq, t.number, share, min(e.end_ms) AS end_ms
    FROM totals AS t, ends AS e, unnest([0.5::DOUBLE, 0.99::DOUBLE, 0.999::DOUBLE]) AS shares (share)
    WHERE t.heartbeats > 0 AND list_sum(t.gaps[1:e.class + 1]) >= share * t.heartbeats
    GROUP BY ALL
),
wide AS (
    SELECT
        namespace, group_id, seq, number,
        max(end_ms) FILTER (share = 0.5::DOUBLE) AS p50_ms,
        max(end_ms) FILTER (share = 0.99::DOUBLE) AS p99_ms,
        max(end_ms) FILTER (share = 0.999::DOUBLE) AS p999_ms
    FROM quantiles
    GROUP BY ALL
)
SELECT
    TRUE AS complete,
    namespace,
    group_id,
    member ->> 0 AS member_id,
    member ->> 1 AS client_id,
    CAST(member ->> 2 AS BIGINT) AS session_timeout_ms,
    CAST(member ->> 3 AS BIGINT) AS from_at,
    at_ms AS to_at,
    heartbeats,
    gaps,
    CAST(member ->> 4 AS BIGINT) AS max_gap_ms,
    p50_ms, p99_ms, p999_ms
FROM totals
LEFT JOIN wide USING (namespace, group_id, seq, number)
