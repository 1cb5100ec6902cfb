"""What waits, and for whom."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from psycopg import sql
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

from events.types import Declaration, Demand
from projections import eligibility, queue
from projections.database import Database
from projections.online import Serving, serving, text_context
from projections.queue import candidates
from projections.rules import (
    ANY_MODEL,
    FIRST,
    Candidate,
    Offer,
    Rules,
    Wanted,
    Worker,
    fits,
    refusal,
)
from projections.session import Session
from tests.projections.conftest import Given
from tests.projections.histories import Story, uuid
from tests.spec import spec

SIZES = {"alpha": 1.0, "beta": 13.0, "gamma": 20.0}
RULES = Rules(validated=frozenset({"KoboldCppEmbedWorker"}), size=lambda model: SIZES[model])
DECLARED = {
    "models": ("alpha", "beta"),
    "chat_jobs": True,
    "model_id": "alpha",
    "chat_max_length": 512,
    "chat_max_context_length": 4096,
}


def offer(speed: float | None = None, *, trusted: bool = False, **declared: Any) -> Offer:
    made = Offer.of(Declaration(**(DECLARED | declared)), RULES, speed)
    return made._replace(trusted=trusted)


def worker(
    number: int = 1, *, trusted: bool = False, speed: float | None = None, **declared: Any
) -> Worker:
    return Worker(
        uuid(number, 0xF000),
        number,
        trusted,
        offer(speed, trusted=trusted, **declared),
        speed=speed,
        capacity=RULES.capacity(speed),
    )


async def ids(database: Database, story: Story, wanted: Offer, **more: Any) -> list[str]:
    more.setdefault("workers", [uuid(1, 0xF000)])
    found = await candidates(database, wanted, now_ms=story.ms, **more)
    return [candidate.request_id for candidate in found]


def waiting(connected: Session) -> dict[str, list[int]]:
    rows = connected.execute("SELECT request_id::text, array_agg(waiting) FROM queue GROUP BY 1")
    return dict(rows.fetchall())


# rows


def test_a_request_waits_until_it_hands_out_no_more_jobs(given: Given, connected: Session):
    story = Story()
    request = story.submit(jobs=2, models=("alpha", "beta"))
    given(story)
    assert waiting(connected) == {request: [2, 2]}

    first, second = story.assign(request), story.assign(request)
    given(story)
    assert waiting(connected) == {request: [0, 0]}

    story.fault(request, first)
    given(story)
    assert waiting(connected) == {request: [1, 1]}

    story.reply(request, second)
    story.give_back(request, story.assign(request))
    given(story)
    assert waiting(connected) == {request: [1, 1]}

    story.reply(request, story.assign(request))
    given(story)
    assert waiting(connected) == {}


@pytest.mark.parametrize("end", ["cancel", "expire"])
def test_a_request_that_is_over_waits_no_more(given: Given, connected: Session, end: str):
    story = Story()
    request = story.submit()
    given(story)

    getattr(story, end)(request)
    given(story)

    assert waiting(connected) == {}


def test_a_worker_has_its_latest_declaration_and_its_first_moment(given: Given, connected: Session):
    story = Story()
    story.check_in(models=("alpha",), threads=2)
    created = story.ms
    given(story)
    story.ms += 30_000
    story.abort()
    story.check_in(models=("beta",), threads=3, trusted=True)
    story.abort()
    given(story)

    row = connected.execute(
        "SELECT models, threads, trusted, created_ms, last_check_in_ms, uncompleted_jobs"
        " FROM workers"
    ).fetchone()

    assert row == (["beta"], 3, True, created, story.ms - 1, 2)


# candidates


async def test_candidates_come_in_rank_order_and_equals_by_age(given: Given, database: Database):
    story = Story()
    old = story.submit(priority=10_000)  # one kudos
    young = story.submit(priority=10_000)
    rich = story.submit(priority=1_000_000)
    story.ms += 60_000
    late = story.submit(priority=2_000_000)  # 100 kudos more, less 5 for each of 60 seconds

    given(story)

    assert await ids(database, story, offer()) == [rich, old, young, late]


async def test_pages_follow_each_other_without_gap_or_overlap(given: Given, database: Database):
    choose = random.Random(1)
    story = Story()
    for _ in range(70):
        story.submit(
            priority=choose.randrange(3) * 10_000,
            max_length=choose.choice((10, 100, 400)),
            features=choose.choice(((), ("seed",))),
        )
        story.ms -= choose.randrange(2)
    given(story)
    mine = offer(chat_features=("seed",))
    everything = await ids(database, story, mine, limit=1000)
    assert len(everything) == 70

    paged: list[str] = []
    after = FIRST
    while page := await candidates(
        database, mine, now_ms=story.ms, limit=9, after=after, workers=[]
    ):
        paged += [candidate.request_id for candidate in page]
        after = page[-1].place

    assert paged == everything


async def test_a_request_found_under_two_models_comes_once_with_both(
    given: Given, database: Database
):
    story = Story()
    story.submit(chat=False, models=("alpha", "beta", "gamma"))
    story.submit(chat=False, models=())
    given(story)

    found = await candidates(database, offer(), now_ms=story.ms, workers=[])

    assert [candidate.wanted.models for candidate in found] == [("alpha", "beta"), ("",)]


async def test_a_page_does_not_end_between_the_models_of_a_request(
    given: Given, database: Database
):
    """Else the model that serves it would be chosen among some of them only."""
    story = Story()
    both = [story.submit(chat=False, models=("alpha", "beta")) for _ in range(3)]
    given(story)

    pages, after = [], FIRST
    while page := await candidates(
        database, offer(), now_ms=story.ms, limit=3, after=after, workers=[]
    ):
        pages.append([(each.request_id, each.wanted.models) for each in page])
        after = page[-1].place

    models = ("alpha", "beta")
    assert pages == [[(both[0], models)], [(both[1], models)], [(both[2], models)]]


async def test_requests_for_a_few_workers_do_not_fill_the_pages_of_others(
    given: Given, database: Database
):
    story = Story()
    mine = uuid(1, 0xF000)
    for _ in range(30):
        story.submit(only=(uuid(2, 0xF000),))
    own = story.submit(only=(uuid(3, 0xF000), mine))
    anyone = story.submit()
    given(story)

    assert await ids(database, story, offer(), workers=[mine], limit=5) == [own, anyone]
    assert await ids(database, story, offer(), workers=[], limit=50) == [anyone]
    all_three = [uuid(number, 0xF000) for number in (1, 2, 3)]
    assert len(await ids(database, story, offer(), workers=all_three, limit=50)) == 32


async def test_an_expired_request_is_no_candidate(given: Given, database: Database):
    story = Story()
    story.submit(ttl=10)
    given(story)
    story.ms += 10_000

    assert await ids(database, story, offer()) == []


async def test_a_worker_without_an_offer_costs_no_query():
    none = offer(chat_jobs=False, prompt_jobs=False)

    assert await candidates(Database("nowhere"), none, now_ms=0, workers=[]) == []


FEATURES = ("seed", "tools", "vision")
AGENTS = ("KoboldCppEmbedWorker:1.2:x", "KoboldCppEmbedWorker:x:y", "z")
SOME = [uuid(number, 0xF000) for number in range(1, 5)]
"""Ids of workers."""


def random_demand(choose: random.Random) -> dict[str, Any]:
    """What a request asks for; each rule has something to say about a part of them."""
    chat = choose.random() < 0.7
    features = tuple(sorted(choose.sample(FEATURES, choose.choice((0, 0, 1, 1, 2)))))
    listed, picky = choose.random(), choose.random() < 0.4
    return {
        "models": tuple(choose.sample(tuple(SIZES), choose.randint(chat, 2))),
        "max_context_length": choose.choice((512, 512, 1024, 1025, 2500, 4097)),
        "features": features,
        "images": "vision" in features and choose.random() < 0.8,
        "tools_temperature": choose.choice((None, None, 0.0, 0.3, 0.5, 0.7, 1.2)),
        "only": tuple(choose.sample(SOME, choose.randint(1, 3))) if listed < 0.1 else (),
        "ignore": tuple(choose.sample(SOME, choose.randint(1, 3))) if listed > 0.9 else (),
        "trusted_workers": picky and choose.random() < 0.5,
        "validated_backends": picky and choose.random() < 0.5,
        "slow_workers": not picky or choose.random() < 0.5,
    }


def random_request(choose: random.Random, story: Story) -> Candidate:
    """A request in the story, and as a candidate without the help of any table."""
    chat, jobs, ttl = choose.random() < 0.7, choose.randint(1, 2), choose.choice((1, 1200, 1200))
    user_id, max_length = choose.randint(1, 4), choose.choice((1, 1, 100, 128, 129, 300, 513))
    demand, priority = random_demand(choose), choose.randrange(10**6)
    if chat and not demand["models"]:
        demand["models"] = ("alpha",)
    id_ = story.submit(
        jobs=jobs,
        chat=chat,
        max_length=max_length,
        priority=priority,
        user_id=user_id,
        ttl=ttl,
        **demand,
    )
    created = touched = story.ms
    waiting, holdoff_worker, holdoff_ms = jobs, "", 0
    if choose.random() < 0.3:
        by = choose.randint(1, 4)
        job, waiting, touched = story.assign(id_, by), jobs - 1, story.ms
        if choose.random() < 0.5:
            story.fault(id_, job, worker=by)
            waiting, holdoff_worker, holdoff_ms = jobs, uuid(by, 0xF000), story.ms + 10_000
    return Candidate(
        id_,
        Wanted.of(Demand(**demand), user_id=user_id, chat=chat, max_length=max_length),
        eligibility.rank(priority, created),
        waiting,
        holdoff_worker,
        holdoff_ms,
        created,
        touched + ttl * 1000,
    )


def random_worker(choose: random.Random) -> Worker:
    models = tuple(choose.sample(tuple(SIZES), choose.randint(1, 3)))
    chat, number = choose.random() < 0.8, choose.randint(1, 4)
    return worker(
        number,
        trusted=choose.random() < 0.7,
        speed=choose.choice((None, None, 0.5, 1.0, 2.5, 3.5, 4.5, 50.0)),
        models=models,
        max_length=choose.choice((100, 128, 300, 512)),
        max_context_length=choose.choice((1024, 2500, 4096)),
        bridge_agent=choose.choice((AGENTS[0], *AGENTS)),
        chat_jobs=chat,
        prompt_jobs=not chat or choose.random() < 0.7,
        model_id=models[0],
        chat_features=tuple(choose.sample(FEATURES, choose.choice((0, 1, 2, 3, 3)))),
        chat_max_length=choose.choice((100, 128, 300, 512)),
        chat_max_context_length=choose.choice((1024, 2500, 4096)),
        chat_tools_max_temperature=choose.choice((None, 0.0, 0.4, 0.5, 1.0)),
        image_transports=choose.choice(
            ((), ("url",), ("messages_url",), ("base64", "x"), ("url",))
        ),
    )._replace(maintenance=choose.random() < 0.1, paused=choose.random() < 0.1)


ASKED: dict[str, Callable[[Candidate, Worker], bool]] = {
    "seed": lambda each, who: "seed" in each.wanted.features,
    "tools": lambda each, who: "tools" in each.wanted.features,
    "vision": lambda each, who: "vision" in each.wanted.features,
    "image_transports": lambda each, who: each.wanted.images,
    "tools_max_temperature": lambda each, who: (
        each.wanted.chat
        and None not in (each.wanted.tools_temperature, who.offer.tools_max_temperature)
    ),
    "max_context_length": lambda each, who: each.wanted.max_context_length > 1000,
    "max_length": lambda each, who: each.wanted.max_length > 100,
    "lease_speed": lambda each, who: each.wanted.chat and who.offer.lease_length is not None,
    "models": lambda each, who: each.wanted.models != (ANY_MODEL,),
    "worker_id": lambda each, who: bool(each.wanted.only or each.wanted.ignore),
    "untrusted": lambda each, who: each.wanted.trusted_workers,
    "bridge_version": lambda each, who: each.wanted.validated_backends,
    "performance": lambda each, who: not each.wanted.slow_workers and who.speed is not None,
    "maintenance": lambda each, who: who.maintenance or who.paused,
    "holdoff": lambda each, who: bool(each.holdoff_worker),
    "expired": lambda each, who: each.expires_ms - each.created_ms < 60_000,
    "not_waiting": lambda each, who: True,
}
"""Every reason for a refusal, and the pairs that it could be one for."""


@spec("Eligibility", 1, 2, 3, 4)
async def test_the_query_and_the_check_of_one_worker_agree_on_ten_thousand_pairs(
    given: Given, database: Database, request: pytest.FixtureRequest
):
    """A list of candidates is shared by the workers of an offer: what concerns one of them alone,
    and what the steps of a lease's length round up, is left to the check."""
    choose = random.Random(int(request.config.getoption("randomly_seed", 1) or 1))
    story = Story()
    everything = [random_request(choose, story) for _ in range(200)]
    given(story)
    now_ms = story.ms + 900
    refused: Counter[str] = Counter()
    let_in: Counter[str] = Counter()

    for _ in range(50):
        who, beside = random_worker(choose), choose.choice(SOME)
        workers = [who.id, beside]
        found = {
            each.request_id: each
            for each in await candidates(
                database, who.offer, now_ms=now_ms, limit=1000, workers=workers
            )
        }
        for each in everything:
            reason = fits(each, who, now_ms)
            asked = found.get(each.request_id)
            assert (reason is None) == (asked is not None and fits(asked, who, now_ms) is None), (
                reason, each, who,
            )  # fmt: skip
            shared = [
                who._replace(
                    id=id_, maintenance=False, paused=False, capacity=who.offer.lease_length
                )
                for id_ in workers
            ]
            anew = each._replace(holdoff_worker="")
            in_reach = any(fits(anew, one, now_ms) is None for one in shared)
            assert in_reach == (asked is not None), (each, who)
            if asked is not None:
                assert asked._replace(wanted=each.wanted) == each
                assert set(asked.wanted.models) <= set(each.wanted.models)
            if reason is None:
                let_in.update(name for name, concerns in ASKED.items() if concerns(each, who))
            else:
                refused[reason] += 1

    assert refused.keys() == let_in.keys() == ASKED.keys(), (refused, let_in)
    assert sum(refused.values()) + let_in["not_waiting"] == 10_000


async def test_the_largest_context_of_online_text_workers(given: Given, database: Database):
    story = Story()
    story.check_in(1, models=("alpha",), max_context_length=1000)
    story.check_in(2, models=("alpha", "beta"), max_context_length=3000)
    story.check_in(3, models=("alpha",), max_context_length=9000, prompt_jobs=False)
    given(story)

    async def most(*models: str, later_ms: int = 0) -> int:
        now_ms = story.ms + later_ms
        return await text_context(database, models, now_ms=now_ms, online_window_s=300)

    assert [await most("alpha"), await most("alpha", "other"), await most()] == [3000] * 3
    assert await most("other") == 0
    assert await most("alpha", later_ms=301_000) == 0


@spec("Eligibility", 1, 2, 3, 4)
@spec("Tool temperature limit", 1, 2)
@spec("Job lease", 8)
@pytest.mark.parametrize(
    ("demand", "who", "reason"),
    [
        ({}, worker(), None),
        ({"models": ("beta",)}, worker(), "models"),
        ({}, worker(chat_jobs=False), "models"),
        ({"features": ("tools", "seed")}, worker(chat_features=("tools",)), "seed"),
        ({"images": True}, worker(image_transports=("messages_url",)), "image_transports"),
        ({"images": True}, worker(image_transports=("base64",)), None),
        ({"max_context_length": 4097}, worker(), "max_context_length"),
        (
            {"tools_temperature": 1.0},
            worker(chat_tools_max_temperature=0.9),
            "tools_max_temperature",
        ),
        ({"tools_temperature": 1.0}, worker(), None),
        ({"only": (uuid(2, 0xF000),)}, worker(), "worker_id"),
        ({"ignore": (uuid(1, 0xF000),)}, worker(), "worker_id"),
        ({"trusted_workers": True}, worker(), "untrusted"),
        ({"trusted_workers": True}, worker(trusted=True), None),
        ({"validated_backends": True}, worker(), "bridge_version"),
        (
            {"validated_backends": True},
            worker(bridge_agent="KoboldCppEmbedWorker:1.90.2:https://x"),
            None,
        ),
        (
            {"validated_backends": True},
            worker(bridge_agent="KoboldCppEmbedWorker"),
            "bridge_version",
        ),
        ({"slow_workers": False}, worker(speed=4.9), "performance"),
        ({"slow_workers": False}, worker(speed=5.0), None),
        ({"slow_workers": False}, worker(), None),
        ({"slow_workers": False}, worker(speed=4.0, models=("beta", "alpha")), None),
        ({"slow_workers": False}, worker(speed=3.9, models=("beta", "alpha")), "performance"),
        ({"slow_workers": False}, worker(speed=3.0, models=("gamma", "alpha")), None),
        ({}, worker(speed=0.83), "lease_speed"),
        ({}, worker(speed=0.84), None),
        ({}, worker()._replace(maintenance=True), "maintenance"),
        ({}, worker(9)._replace(maintenance=True), None),
    ],
)
def test_each_rule_has_its_reason(demand: dict[str, Any], who: Worker, reason: str | None):
    asked = Demand(**({"models": ("alpha",)} | demand))

    wanted = Wanted.of(asked, user_id=9, chat=True, max_length=100)

    assert refusal(wanted, who) == reason


def test_a_request_is_held_off_only_from_the_worker_that_faulted_it():
    wanted = Wanted.of(Demand(models=("alpha",)), user_id=9, chat=True, max_length=100)
    candidate = Candidate(uuid(1), wanted, 0, 1, worker(1).id, 5000, 0, 10_000)

    assert fits(candidate, worker(1), 4999) == "holdoff"
    assert fits(candidate, worker(1), 5000) is None
    assert fits(candidate, worker(2), 4999) is None
    assert fits(candidate, worker(2), 10_000) == "expired"


# the plan

LONG = 50_000
EXAMINED = 24
"""Entries of tables and indexes that a pop may look at, however long the queue is: one for each
class of needs that waits (nine at most, here) and the end of them, one for each worker that asks,
and two or three for each row that it gets. A number that grows with the queue is a walk."""

OUT_OF_REACH: dict[str, list[dict[str, Any]]] = {
    "features": [
        {"features": ("vision", *more), "images": images, "max_length": length}
        for more in ((), ("seed",))
        for images in (False, True)
        for length in (100, 200)
    ],
    "only": [{"only": (uuid(2, 0xF000),)}, {"only": (uuid(2, 0xF000),), "max_length": 200}],
    "trust": [{"trusted_workers": True}, {"trusted_workers": True, "features": ("seed",)}],
    "speed": [{"slow_workers": False}],
    "backends": [{"validated_backends": True}],
    "far too long": [{"max_length": 2000}],
}


def lengthen(connected: Session, count: int) -> None:
    """Of what waits, in equal shares, as many as `count`, all of them further ahead.

    A list of workers is another one each time.
    """
    connected.execute(
        """
        INSERT INTO queue (request_id, model, partition, rank, waiting, chat, max_length,
            max_context_length, features, images, tools_temperature, only_workers, ignore_workers,
            trusted_workers, validated_backends, slow_workers, class, user_id, holdoff_worker,
            holdoff_ms, ttl, created_ms, touched_ms)
        SELECT gen_random_uuid(), model, partition, rank + n, waiting, chat, max_length,
            max_context_length, features, images, tools_temperature,
            CASE WHEN only_workers = '{}' THEN '{}'
                ELSE ARRAY[gen_random_uuid()::text] END,
            ignore_workers, trusted_workers, validated_backends, slow_workers, class, user_id,
            holdoff_worker, holdoff_ms, ttl, created_ms, touched_ms
        FROM queue, generate_series(1, %(count)s / (SELECT count(*) FROM queue)) AS n
        """,
        {"count": count},
    )
    connected.execute(
        "INSERT INTO queue_listed SELECT w, chat, model, class, rank, request_id, partition"
        " FROM queue, unnest(only_workers) AS w ON CONFLICT DO NOTHING"
    )


class Kept:
    """The candidate query of one connection, with the plan that it made of an empty queue."""

    def __init__(self, url: str) -> None:
        self._database = Database(url, connections=1)
        self._name = ""
        self._asked: dict[str, Any] = {}

    async def fetch(self, query: bytes, parameters: Any) -> Any:
        """As a database, remembering what was asked."""
        self._asked = parameters
        return await self._database.fetch(query, parameters)

    async def prepare(self, wanted: Offer, workers: list[str]) -> None:
        """Ask as often as it takes until the server keeps its plan."""
        for _ in range(8):
            assert await self.find(wanted, workers) == []
        names = await self._database.fetch(
            b"SELECT name FROM pg_prepared_statements WHERE statement LIKE 'WITH RECURSIVE asked%%'"
        )
        ((self._name,),) = names

    async def find(self, wanted: Offer, workers: list[str]) -> list[str]:
        """The ids of the first page."""
        found = await candidates(self, wanted, now_ms=1, limit=10, workers=workers)
        return [each.request_id for each in found]

    async def explained(self) -> dict[str, Any]:
        """What the server does for the last question, by the kept plan."""
        order = dict.fromkeys(re.findall(rb"%\((\w+)\)s", queue._CANDIDATES))
        values = [sql.Literal(self._asked[name.decode()]) for name in order]
        explain = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {} ({})").format(
            sql.Identifier(self._name), sql.SQL(", ").join(values)
        )
        ((plans,),) = await self._database.fetch(explain.as_bytes())
        plan: dict[str, Any] = plans[0]["Plan"]
        return plan

    async def close(self) -> None:
        await self._database.close()


@pytest.fixture
async def kept(url: str) -> AsyncIterator[Kept]:
    made = Kept(url)
    yield made
    await made.close()


def scans(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of a plan that read a table or an index of it."""
    if node.get("Relation Name"):
        yield node
    for part in node.get("Plans", ()):
        yield from scans(part)


def examined(plan: dict[str, Any]) -> float:
    """Entries that were looked at, the useless ones included."""
    return sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in scans(plan)
    )


@pytest.mark.parametrize("why", OUT_OF_REACH)
async def test_a_pop_looks_at_a_few_entries_of_a_queue_that_is_out_of_its_reach(
    given: Given, connected: Session, kept: Kept, why: str
):
    """All but one request, and that one is the last."""
    count = LONG if why in ("features", "only", "trust") else LONG // 10

    await _look_at_a_few(given, connected, kept, why, count)


async def test_statistics_of_a_queue_that_is_all_alike_mislead_no_plan(
    given: Given, connected: Session, kept: Kept
):
    """To the server all rows are alike, so that no index seems better than another; then comes one
    that is not.
    """
    await _look_at_a_few(given, connected, kept, "speed", LONG // 10, "ANALYZE queue")


async def _look_at_a_few(
    given: Given, connected: Session, kept: Kept, why: str, count: int, meanwhile: str = ""
) -> None:
    mine, workers = offer(speed=4.5, prompt_jobs=False), [uuid(1, 0xF000), uuid(3, 0xF000)]
    await kept.prepare(mine, workers)
    story = Story()
    for demand in OUT_OF_REACH[why]:
        story.submit(priority=10**6, **demand)
    given(story)
    lengthen(connected, count)
    connected.execute(meanwhile)
    last = story.submit(only=(uuid(3, 0xF000),) if why == "only" else ())
    given(story)
    assert connected.execute("SELECT count(*) FROM queue").fetchone() > (count,)

    assert await kept.find(mine, workers) == [last]
    plan = await kept.explained()

    assert {node["Node Type"] for node in scans(plan)} <= {"Index Scan", "Index Only Scan"}
    assert examined(plan) <= EXAMINED


async def test_what_is_a_little_too_long_is_passed_over_in_the_index_alone(
    given: Given, connected: Session, kept: Kept
):
    """Lengths are alike to a factor of two within a class: that far a pop walks, and no table."""
    mine, workers = offer(chat_max_length=300, prompt_jobs=False), [uuid(1, 0xF000)]
    await kept.prepare(mine, workers)
    story = Story()
    story.submit(priority=10**6, max_length=400)
    given(story)
    lengthen(connected, LONG)
    connected.execute(
        "SET synchronous_commit = on"
    )  # or vacuum cannot know that rows are committed
    last = story.submit(max_length=290)
    given(story)
    connected.execute("VACUUM queue")

    assert await kept.find(mine, workers) == [last]
    plan = await kept.explained()

    walks = [node for node in scans(plan) if node.get("Rows Removed by Filter", 0) > EXAMINED]
    assert [node["Node Type"] for node in walks] == ["Index Only Scan"]
    assert sum(node["Rows Removed by Filter"] for node in walks) <= LONG + 1
    assert walks[0]["Heap Fetches"] <= EXAMINED
    assert examined(plan) - (LONG + 1) <= EXAMINED


# who is there


async def test_serving_tells_the_largest_limits_of_each_model(given: Given, database: Database):
    story = Story()
    story.check_in(1, **DECLARED)
    story.check_in(2, **(DECLARED | {"chat_max_length": 9, "chat_max_context_length": 9000}))
    given(story)

    found = await serving(database, ["alpha", "beta", "\0"], now_ms=story.ms, online_window_s=300)

    assert found == {"alpha": Serving(2, 2, 512, 9000)}


async def test_the_best_requests_of_an_account_are_found_however_many_are_ahead(
    given: Given, database: Database
):
    story = Story()
    for _ in range(30):
        story.submit(priority=10**9)
    own = [story.submit(user_id=7), story.submit(user_id=7, chat=False, models=())]
    story.submit(user_id=7, models=("gamma",))
    story.assign(story.submit(user_id=7))
    given(story)

    async def found(*users: int, **declared: Any) -> list[str]:
        mine = offer(**declared)
        listed = await queue.of_users(database, mine, users, now_ms=story.ms)
        return [each.request_id for each in listed]

    assert await found(7) == own
    assert await found(7, 8, prompt_jobs=False) == own[:1]
    assert await found() == []
    assert len(await found(1, 7)) == 32


async def test_what_waits_is_tallied_by_its_needs(given: Given, database: Database):
    story = Story()
    for _ in range(3):
        story.submit(features=("seed",))
    for _ in range(2):
        story.submit(chat=False, models=("alpha", "beta"), only=(uuid(7, 0xF000),))
    story.submit(chat=False, models=("gamma",))
    given(story)

    groups = await queue.tally(database, offer())

    assert [(each.requests, each.wanted.chat, each.wanted.models) for each in groups] == [
        (3, True, ("alpha",)),
        (2, False, ("alpha", "beta")),
    ]
    assert [refusal(each.wanted, worker()) for each in groups] == ["seed", "worker_id"]
    assert await queue.tally(database, offer(chat_jobs=False, prompt_jobs=False)) == []


async def test_a_tally_of_a_long_queue_is_bounded(
    given: Given, connected: Session, database: Database
):
    story = Story()
    story.submit()
    given(story)
    lengthen(connected, 3000)

    groups = await queue.tally(database, offer())

    assert sum(group.requests for group in groups) == queue.COUNTED


def test_what_a_pop_asks_is_short_enough_to_be_taken_apart_once() -> None:
    assert len(queue._CANDIDATES) <= MAX_CACHED_STATEMENT_LENGTH
