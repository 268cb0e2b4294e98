SELECT
    TRUE AS complete,
    namespace,
    group_id,
    generation_id,
    at_ms AS at,
    payload ->> 'former_leader_id' AS former_leader_id,
    payload ->> 'leader_id' AS leader_id,
    payload ->> 'cause' AS cause,
    reason
FROM lines
WHERE kind = 'leader_changed'
