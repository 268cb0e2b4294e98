SELECT
    TRUE AS complete,
    shard_id,
    seq,
    at_ms AS at,
    namespace,
    group_id,
    generation_id,
    payload ->> 'operation' AS operation,
    payload ->> 'actor' AS actor,
    payload ->> 'target' AS target,
    reason AS note,
    payload ->> 'origin' AS origin
FROM lines
WHERE kind = 'administered'
