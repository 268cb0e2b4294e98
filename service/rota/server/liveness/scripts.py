"""Scripts for Redis: each is one atomic step on one shard's sorted set, by Redis's own clock.

The set has each member's name with the time, in milliseconds, when it was last seen. The empty name has the time of an
owner's last update.
"""

from __future__ import annotations

CLOCK_BACK_MS = 2_000
"""A time further in the future is not one of a heartbeat: the clock was set back, or no replica wrote it."""

NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

PUBLISH = (
    NOW
    + f"""
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. (now + {CLOCK_BACK_MS}), '+inf')"""
    + """
local published = redis.call('ZSCORE', KEYS[1], '')
local gone = cjson.decode(ARGV[1])
if #gone > 0 then redis.call('ZREM', KEYS[1], unpack(gone)) end
local seen = {}
for name, ms_ago in pairs(cjson.decode(ARGV[2])) do
    seen[#seen + 1] = now - ms_ago
    seen[#seen + 1] = name
end
if #seen > 0 then redis.call('ZADD', KEYS[1], 'GT', unpack(seen)) end
if ARGV[3] == '1' then
    redis.call('ZADD', KEYS[1], 'GT', now, '')
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[4])
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return {now, published}
"""
)
"""The removed members, the seen members, whether this is the last part, and the time to remember."""

READ = (
    NOW
    + """
if redis.call('ZCARD', KEYS[1]) > tonumber(ARGV[1]) then return redis.error_reply('WRONGTYPE too many entries') end
return {now, redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')}
"""
)
"""The maximum number of entries."""

SEEN = NOW + "return {now, redis.call('ZMSCORE', KEYS[1], unpack(ARGV))}"

RECORD = (
    NOW
    + """
local known = {}
for i, name in ipairs(ARGV) do
    if redis.call('ZSCORE', KEYS[1], name) then
        redis.call('ZADD', KEYS[1], 'XX', 'GT', now, name)
        known[i] = 1
    else
        known[i] = 0
    end
end
return known
"""
)
