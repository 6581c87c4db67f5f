"""The server's answers, as they come. Fields that are 0, empty or false are left out."""

from __future__ import annotations

from typing import Dict, List, Literal, TypedDict

Mode = Literal["exclusive", "shared"]


class Details(TypedDict, total=False):
    """Who holds or waits, and what for. They are for people: nothing verifies them."""

    host: str
    user: str
    pid: int
    program: str
    started: str  # RFC 3339
    link: str  # a URL of http or https, without a password
    labels: Dict[str, str]  # anything else
    text: str  # beside details, the note is the same text
    kind: str  # such as "keeps", of a holder that keeps the lock between uses
    preference: int  # of a candidate for leadership


class _Party(TypedDict):
    owner: str  # its beginning
    handle: str  # tells owners apart; Client.evict takes it
    mode: Mode


class Holder(_Party, total=False):
    """Someone who holds a lock. Times are in milliseconds."""

    token: str
    limit: int
    weight: int  # of a shared holder, if above 1
    held_ms: int
    left_ms: int
    ttl_ms: int
    renewed_ms: int  # how long ago it was granted or renewed
    unrenewed_ms: int  # for how long no renewal was seen, where ttl_ms is unknown
    note: str
    details: Details


class Waiter(_Party, total=False):
    """Someone who waits for a lock."""

    weight: int
    waited_ms: int
    note: str
    here: bool  # it waits at the instance that answered
    details: Details


class _Lock(TypedDict):
    name: str
    token: str
    holders: List[Holder]
    waiters: List[Waiter]  # in order


class Lock(_Lock, total=False):
    """What is known of a lock."""

    damaged: str
    limit: int  # that an operator has set
    used: int  # the weights of all shared holders


class Features(TypedDict, total=False):
    """What the server's store promises."""

    fencing: bool
    shared: bool
    fair: bool
    wakes: bool
    resumes: bool
    min_ttl_ms: int
    step_ms: int
    session_ttl_ms: int
    inspects: bool
    evicts: bool
    lingers: bool
    notes: bool
    raises_fences: bool
    lifts_fences: bool
    bars_late_calls: bool
    tells: bool
    recalls: bool
    keeps: bool
    wanted_once: bool
    weights: bool
    limits: bool
    max_wait_ms: int
