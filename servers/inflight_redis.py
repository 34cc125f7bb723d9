"""The lines of calls in Redis (`servers.inflight`): one script is one visit.

A line is two sorted sets of the same members, `<number>:<holder>`: one by number, which is the
order, one by the millisecond at which the lease runs out, by Redis's own clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

from servers.inflight import LEASE, StoreAway, Turn
from umpteenth.core.live import REDIS_TIMEOUT_SECONDS

logger = logging.getLogger(__name__)
T = TypeVar("T")

PREFIX: Final = "umpteenth:calls:"
QUIET_SECONDS: Final = 3.0  # without another attempt after one that failed
_LEASE_MS: Final = int(LEASE.total_seconds() * 1000)

_PURGE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function purge(server)
  local line, lease = PREFIX .. server .. ':line', PREFIX .. server .. ':lease'
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', lease, '-inf', now)) do
    redis.call('ZREM', line, member)
    redis.call('ZREM', lease, member)
  end
  return line, lease
end
local function keep(key) redis.call('PEXPIRE', key, LEASE * 2) end
""".replace("PREFIX", f"'{PREFIX}'").replace("LEASE", str(_LEASE_MS))

# ARGV: server, holder, how many to take, how many leave, the leaving members, the waiting ones.
# Answers with the new numbers, then the ranks of the waiting and of the new ones (-1: gone).
_TURN: Final = (
    _PURGE
    + """
local server, holder = ARGV[1], ARGV[2]
local take, leaving = tonumber(ARGV[3]), tonumber(ARGV[4])
local line, lease = purge(server)
for at = 5, 4 + leaving do
  redis.call('ZREM', line, ARGV[at])
  redis.call('ZREM', lease, ARGV[at])
end
local numbers, members = {}, {}
for at = 5 + leaving, #ARGV do members[#members + 1] = ARGV[at] end
for at = 1, take do
  local number = redis.call('INCR', PREFIX .. 'number')
  local member = string.format('%.0f:%s', number, holder)
  redis.call('ZADD', line, number, member)
  redis.call('ZADD', lease, now + LEASE, member)
  numbers[at] = number
  members[#members + 1] = member
end
if take > 0 then
  local servers = PREFIX .. 'holder:' .. holder
  redis.call('SADD', servers, server)
  keep(line) keep(lease) keep(servers)
end
local answer = numbers
for _, member in ipairs(members) do
  answer[#answer + 1] = redis.call('ZRANK', line, member) or -1
end
return answer
""".replace("PREFIX", f"'{PREFIX}'").replace("LEASE", str(_LEASE_MS))
)

# ARGV: server, holder, the members to keep.
_KEEP_ONLY: Final = (
    _PURGE
    + """
local server, holder = ARGV[1], ARGV[2]
local line, lease = purge(server)
local kept = {}
for at = 3, #ARGV do kept[ARGV[at]] = true end
for _, member in ipairs(redis.call('ZRANGE', line, 0, -1)) do
  if string.sub(member, -#holder - 1) == ':' .. holder and not kept[member] then
    redis.call('ZREM', line, member)
    redis.call('ZREM', lease, member)
  end
end
"""
)

# ARGV: holder, 'renew' or 'drop'.
_HOLDER: Final = (
    _PURGE
    + """
local holder = ARGV[1]
local servers = PREFIX .. 'holder:' .. holder
for _, server in ipairs(redis.call('SMEMBERS', servers)) do
  local line, lease = purge(server)
  for _, member in ipairs(redis.call('ZRANGE', line, 0, -1)) do
    if string.sub(member, -#holder - 1) == ':' .. holder then
      if ARGV[2] == 'renew' then
        redis.call('ZADD', lease, now + LEASE, member)
      else
        redis.call('ZREM', line, member)
        redis.call('ZREM', lease, member)
      end
    end
  end
  keep(line) keep(lease)
end
if ARGV[2] == 'renew' then keep(servers) else redis.call('DEL', servers) end
""".replace("PREFIX", f"'{PREFIX}'").replace("LEASE", str(_LEASE_MS))
)


class RedisStore:
    """Implements `servers.inflight.Store`. Connections are shared by all threads."""

    def __init__(self, url: str) -> None:
        from redis import Redis, RedisError

        client = Redis.from_url(
            url,
            socket_timeout=REDIS_TIMEOUT_SECONDS,
            socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
        )
        self._errors = (RedisError, OSError)
        self._turn: Callable[..., Any] = client.register_script(_TURN)
        self._keep_only: Callable[..., Any] = client.register_script(_KEEP_ONLY)
        self._holder: Callable[..., Any] = client.register_script(_HOLDER)
        self._quiet_until = 0.0

    def turn(
        self,
        server_id: UUID,
        holder: str,
        *,
        limit: int,
        take: int = 0,
        leave: Sequence[int] = (),
        waiting: Sequence[int] = (),
    ) -> Turn:
        members = [f"{number}:{holder}" for number in (*leave, *waiting)]
        arguments = [str(server_id), holder, take, len(leave), *members]
        answer: list[int] = self._ask(lambda: self._turn(args=arguments))
        taken, ranks = answer[:take], answer[take:]
        asked = list(zip([*waiting, *taken], ranks, strict=True))
        return Turn(
            taken,
            frozenset(number for number, rank in asked if 0 <= rank < limit),
            frozenset(number for number, rank in asked if rank < 0),
        )

    def keep_only(self, server_id: UUID, holder: str, ids: Collection[int]) -> None:
        members = [f"{number}:{holder}" for number in ids]
        self._ask(lambda: self._keep_only(args=[str(server_id), holder, *members]))

    def renew(self, holder: str) -> None:
        self._ask(lambda: self._holder(args=[holder, "renew"]))

    def drop(self, holder: str) -> None:
        self._ask(lambda: self._holder(args=[holder, "drop"]))

    def sweep(self) -> int:
        """Nothing to do: every visit does it, and what nobody visits expires as a whole."""
        return 0

    def _ask(self, work: Callable[[], T]) -> T:
        """Runs do not wait for a Redis that is away with each of their calls."""
        if time.monotonic() < self._quiet_until:
            raise StoreAway("Redis did not answer a moment ago.")
        try:
            return work()
        except self._errors as error:
            self._quiet_until = time.monotonic() + QUIET_SECONDS
            logger.warning("the lines of calls cannot reach Redis: %s", error)
            raise StoreAway(str(error)) from error
