WITH RECURSIVE of_group AS (
    SELECT
        *,
        epoch <> lag(epoch) OVER (PARTITION BY shard_id, namespace, group_id ORDER BY seq) AS taken_over,
        last_value(
            CASE
                WHEN
                    kind IN (
                        'generation_completed', 'assignment_synced', 'generation_raised',
                        'group_emptied', 'group_deleted'
                    )
                    THEN CAST(payload ->> 'generation_id' AS INTEGER)
            END IGNORE NULLS
        ) OVER (
            PARTITION BY shard_id, namespace, group_id ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS generation_before
    FROM lines
    WHERE group_id <> ''
),
gone AS (
    SELECT *, payload ->> 'member_id' AS member_id, payload ->> 'new_member_id' AS new_member_id
    FROM of_group
    WHERE kind IN ('member_left', 'member_expired', 'member_removed', 'member_fenced')
),
said AS (
    SELECT *, payload -> 'member' AS member, payload -> 'member' ->> 'member_id' AS member_id
    FROM of_group
    WHERE kind IN ('member_joined', 'member_updated')
),
completed AS (
    SELECT *, unnest(CAST(payload -> 'member_ids' AS VARCHAR[])) AS member_id
    FROM of_group
    WHERE kind = 'generation_completed'
),
began AS (
    SELECT
        shard_id, namespace, group_id, member_id,
        seq AS root, seq AS begin_seq, at_ms AS joined_at,
        FALSE AS settled, NULL::INTEGER AS first_before, NULL::JSON AS member_before
    FROM said
    WHERE kind = 'member_joined'
    UNION ALL
    SELECT shard_id, namespace, group_id, new_member_id, root, end_seq, end_ms, settled_at_end, first_anew, member
    FROM (
        SELECT
            *,
            CASE WHEN first_generation_id IS NOT NULL THEN generation_before END AS first_anew
        FROM (
            SELECT
                b.shard_id, b.namespace, b.group_id, b.root, e.new_member_id, e.end_seq, e.end_ms,
                e.generation_before,
                b.settled OR c.first_seq < e.end_seq AS settled_at_end,
                coalesce(b.first_before, CASE WHEN c.first_seq < e.end_seq THEN c.first_generation END)
                    AS first_generation_id,
                coalesce(
                    (
                        SELECT arg_max(s.member, s.seq)
                        FROM said AS s
                        WHERE
                            (s.shard_id, s.namespace, s.group_id, s.member_id)
                            = (b.shard_id, b.namespace, b.group_id, b.member_id)
                            AND s.seq BETWEEN b.begin_seq AND e.end_seq
                    ),
                    b.member_before
                ) AS member
            FROM began AS b
            INNER JOIN LATERAL (
                SELECT
                    min(g.seq) AS end_seq, arg_min(g.kind, g.seq) AS kind, arg_min(g.at_ms, g.seq) AS end_ms,
                    arg_min(g.new_member_id, g.seq) AS new_member_id,
                    arg_min(g.generation_before, g.seq) AS generation_before
                FROM gone AS g
                WHERE
                    (g.shard_id, g.namespace, g.group_id, g.member_id)
                    = (b.shard_id, b.namespace, b.group_id, b.member_id)
                    AND g.seq > b.begin_seq
            ) AS e ON e.kind = 'member_fenced'
            LEFT JOIN LATERAL (
                SELECT
                    min(c.seq) AS first_seq, arg_min(CAST(c.payload ->> 'generation_id' AS INTEGER), c.seq) AS first_generation
                FROM completed AS c
                WHERE
                    (c.shard_id, c.namespace, c.group_id, c.member_id)
                    = (b.shard_id, b.namespace, b.group_id, b.member_id)
                    AND c.seq > b.begin_seq
            ) AS c ON TRUE
            WHERE
                b.settled
                OR NOT EXISTS (
                    SELECT 1
                    FROM of_group AS o
                    WHERE
                        o.taken_over
                        AND (o.shard_id, o.namespace, o.group_id) = (b.shard_id, b.namespace, b.group_id)
                        AND o.seq > b.begin_seq
                        AND o.seq <= e.end_seq
                        AND (c.first_seq IS NULL OR o.seq <= c.first_seq)
                )
        )
    )
),
spells AS (
    SELECT
        b.*,
        (
            SELECT min(c.seq) FROM completed AS c
            WHERE
                (c.shard_id, c.namespace, c.group_id, c.member_id)
                = (b.shard_id, b.namespace, b.group_id, b.member_id)
                AND c.seq > b.begin_seq
        ) AS completed_seq,
        (
            SELECT min(g.seq) FROM gone AS g
            WHERE
                (g.shard_id, g.namespace, g.group_id, g.member_id)
                = (b.shard_id, b.namespace, b.group_id, b.member_id)
                AND g.seq > b.begin_seq
        ) AS gone_seq,
        (
            SELECT min(o.seq) FROM of_group AS o
            WHERE
                o.taken_over
                AND (o.shard_id, o.namespace, o.group_id) = (b.shard_id, b.namespace, b.group_id)
                AND o.seq > b.begin_seq
        ) AS taken_over_seq
    FROM began AS b
),
ended AS (
    SELECT
        *,
        NOT settled
        AND taken_over_seq <= coalesce(completed_seq, taken_over_seq)
        AND taken_over_seq <= coalesce(gone_seq, taken_over_seq) AS forgotten,
        CASE WHEN coalesce(forgotten, FALSE) THEN taken_over_seq ELSE gone_seq END AS end_seq
    FROM spells
),
rows AS (
    SELECT
        x.shard_id, x.namespace, x.group_id, x.member_id, x.root, x.end_seq, x.joined_at,
        coalesce(
            (
                SELECT arg_max(s.member, s.seq)
                FROM said AS s
                WHERE
                    (s.shard_id, s.namespace, s.group_id, s.member_id)
                    = (x.shard_id, x.namespace, x.group_id, x.member_id)
                    AND s.seq >= x.begin_seq
                    AND (x.end_seq IS NULL OR s.seq < x.end_seq)
            ),
            x.member_before
        ) AS member,
        o.at_ms AS ended_at,
        greatest(0, o.at_ms - x.joined_at) AS ms,
        coalesce(
            x.first_before,
            (
                SELECT CAST(c.payload ->> 'generation_id' AS INTEGER)
                FROM completed AS c
                WHERE
                    (c.shard_id, c.namespace, c.group_id, c.member_id)
                    = (x.shard_id, x.namespace, x.group_id, x.member_id)
                    AND c.seq = x.completed_seq
                    AND (x.end_seq IS NULL OR c.seq < x.end_seq)
            )
        ) AS first_generation_id,
        o.generation_before,
        CASE
            WHEN x.forgotten THEN 'forgotten'
            WHEN o.kind = 'member_fenced' THEN 'replaced'
            ELSE replace(o.kind, 'member_', '')
        END AS "end",
        CASE WHEN x.forgotten THEN 'its join phase was forgotten' ELSE o.reason END AS end_reason
    FROM ended AS x
    INNER JOIN of_group AS o
        ON (o.shard_id, o.namespace, o.group_id, o.seq) = (x.shard_id, x.namespace, x.group_id, x.end_seq)
),
clocked AS (
    SELECT
        *,
        coalesce(member ->> 'group_instance_id', member ->> 'client_id') AS client,
        max(ended_at) OVER of_group AS latest_end,
        row_number() OVER of_group AS number
    FROM rows
    WINDOW of_group AS (PARTITION BY shard_id, namespace, group_id ORDER BY end_seq, root)
)
SELECT
    TRUE AS complete,
    r.namespace, r.group_id, r.member_id,
    r.member ->> 'group_instance_id' AS group_instance_id,
    r.member ->> 'client_id' AS client_id,
    r.member ->> 'host' AS host,
    CAST(r.member ->> 'session_timeout_ms' AS BIGINT) AS session_timeout_ms,
    CAST(r.member ->> 'rebalance_timeout_ms' AS BIGINT) AS rebalance_timeout_ms,
    r.joined_at, r.ended_at, r.ms, r.first_generation_id,
    CASE WHEN r.first_generation_id IS NOT NULL THEN r.generation_before END AS last_generation_id,
    r."end", r.end_reason,
    count(*) AS sessions_in_hour,
    list_sort(list(s.ms))[(count(*) - 1) // 2 + 1] AS median_session_ms,
    count(*) FILTER (s.joined_at > r.latest_end - 3600000) AS flapping
FROM clocked AS r
INNER JOIN clocked AS s
    ON
        (s.shard_id, s.namespace, s.group_id, s.client) = (r.shard_id, r.namespace, r.group_id, r.client)
        AND s.number <= r.number
        AND s.latest_end > r.latest_end - 3600000
GROUP BY ALL
