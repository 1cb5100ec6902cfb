"""What waits, and for whom."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events.keys import Keys
from events.types import Declaration, Demand
from projections import eligibility
from projections.database import Database
from projections.eligibility import (
    FIRST,
    Candidate,
    Offer,
    Rules,
    Serving,
    Wanted,
    Worker,
    candidates,
    fits,
    serving,
    text_context,
)
from projections.log import Log
from projections.session import Session
from tests.projections.conftest import Given, catch_up, wipe
from tests.projections.histories import Story, append, uuid
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
    while page := await candidates(database, mine, now_ms=story.ms, limit=9, after=after):
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

    found = await candidates(database, offer(), now_ms=story.ms)

    assert [candidate.wanted.models for candidate in found] == [("alpha", "beta"), ("",)]


async def test_a_page_does_not_end_between_the_models_of_a_request(
    given: Given, database: Database
):
    """Else the model that serves it would be chosen among some of them only."""
    story = Story()
    both = [story.submit(chat=False, models=("alpha", "beta")) for _ in range(3)]
    given(story)

    pages, after = [], FIRST
    while page := await candidates(database, offer(), now_ms=story.ms, limit=3, after=after):
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
    assert len(await ids(database, story, offer(), limit=50)) == 32


async def test_an_expired_request_is_no_candidate(given: Given, database: Database):
    story = Story()
    story.submit(ttl=10)
    given(story)
    story.ms += 10_000

    assert await ids(database, story, offer()) == []


async def test_a_worker_without_an_offer_costs_no_query():
    none = offer(chat_jobs=False, prompt_jobs=False)

    assert await candidates(Database("nowhere"), none, now_ms=0) == []


def random_demand(choose: random.Random) -> dict[str, Any]:
    features = tuple(sorted(choose.sample(("seed", "tools", "vision"), choose.randrange(3))))
    return {
        "jobs": choose.randint(1, 2),
        "chat": choose.random() < 0.7,
        "max_length": choose.choice((1, 100, 128, 129, 300, 512, 513)),
        "user_id": choose.randint(1, 3),
        "models": tuple(choose.sample(("alpha", "beta", "gamma"), choose.randrange(1, 3))),
        "max_context_length": choose.choice((1024, 2048, 3000, 4096, 4097)),
        "features": features,
        "images": "vision" in features and choose.random() < 0.7,
        "tools_temperature": choose.choice((None, 0.0, 0.3, 0.5, 0.7, 1.2)),
        "only": (uuid(1, 0xF000),) if choose.random() < 0.2 else (),
        "ignore": (uuid(1, 0xF000),) if choose.random() < 0.2 else (),
        "trusted_workers": choose.random() < 0.3,
        "validated_backends": choose.random() < 0.3,
        "slow_workers": choose.random() < 0.7,
    }


def random_worker(choose: random.Random) -> Worker:
    models = tuple(choose.sample(("alpha", "beta", "gamma"), choose.randint(1, 3)))
    chat = choose.random() < 0.8
    return worker(
        choose.randint(1, 2),
        trusted=choose.random() < 0.5,
        speed=choose.choice((None, 0.5, 1.0, 2.5, 3.5, 4.5, 50.0)),
        models=models,
        max_length=choose.choice((100, 128, 300, 512)),
        max_context_length=choose.choice((1024, 2500, 4096)),
        bridge_agent=choose.choice(("KoboldCppEmbedWorker:1.2:x", "KoboldCppEmbedWorker:x:y", "z")),
        chat_jobs=chat,
        prompt_jobs=not chat or choose.random() < 0.7,
        model_id=models[0],
        chat_features=tuple(choose.sample(("seed", "tools", "vision"), choose.randrange(4))),
        chat_max_length=choose.choice((100, 128, 300, 512)),
        chat_max_context_length=choose.choice((1024, 2500, 4096)),
        chat_tools_max_temperature=choose.choice((None, 0.0, 0.4, 0.5, 1.0)),
        image_transports=choose.choice(((), ("url",), ("messages_url",))),
    )


SHARED = {
    "untrusted",
    "models",
    "seed",
    "tools",
    "vision",
    "image_transports",
    "tools_max_temperature",
    "max_context_length",
    "max_length",
    "bridge_version",
    "performance",
    "lease_speed",  # but for what the steps of an offer round up
    "expired",
    "not_waiting",
}
"""What all workers of one offer have in common: the query's part of the rules."""


@spec("Eligibility", 1, 2, 3, 4)
@settings(
    max_examples=25,  # of 50 requests and 8 workers: 10,000 pairs
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
async def test_the_query_and_fits_agree(
    client: Any, keys: Keys, reader: Log, connected: Session, database: Database, seed: int
):
    client.flushall()
    wipe(connected)
    choose = random.Random(seed)
    story = Story()
    for _ in range(50):
        request = story.submit(ttl=choose.choice((1, 1200)), **random_demand(choose))
        if choose.random() < 0.3:
            story.fault(request, story.assign(request))
    append(client, story.events, keys)
    catch_up(reader, connected)
    now_ms = story.ms + 1500
    everything = all_rows(connected)

    for _ in range(8):
        who = random_worker(choose)
        found = await candidates(database, who.offer, now_ms=now_ms, limit=1000)

        asked = {candidate.request_id for candidate in found}
        may = {each.request_id for each in everything if fits(each, who, now_ms) is None}
        assert may == {each.request_id for each in found if fits(each, who, now_ms) is None}
        for each in everything:
            anyone = who._replace(id="of no list", capacity=who.offer.lease_length)
            unlisted = each._replace(wanted=each.wanted._replace(only=(), ignore=()))
            reason = fits(unlisted, anyone, now_ms)
            assert (each.request_id in asked) == (reason is None), reason
            assert reason is None or reason in SHARED


def all_rows(connected: Session) -> list[Candidate]:
    rows = connected.execute(
        "SELECT request_id::text, array_agg(model), user_id, chat, max_length, max_context_length,"
        " features, images, tools_temperature, only_workers, ignore_workers, trusted_workers,"
        " validated_backends, slow_workers, rank, waiting, holdoff_worker, holdoff_ms, created_ms,"
        " expires_ms FROM queue"
        " GROUP BY request_id, user_id, chat, max_length, max_context_length, features, images,"
        " tools_temperature, only_workers, ignore_workers, trusted_workers, validated_backends,"
        " slow_workers, rank, waiting, holdoff_worker, holdoff_ms, created_ms, expires_ms"
    ).fetchall()
    return [
        Candidate(
            row[0],
            Wanted(
                row[2],
                row[3],
                tuple(row[1]),
                row[4],
                row[5],
                frozenset(row[6]),
                row[7],
                row[8],
                tuple(row[9]),
                tuple(row[10]),
                *row[11:14],
            ),
            *row[14:],
        )
        for row in rows
    ]


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

    assert eligibility.refusal(wanted, who) == reason


def test_a_request_is_held_off_only_from_the_worker_that_faulted_it():
    wanted = Wanted.of(Demand(models=("alpha",)), user_id=9, chat=True, max_length=100)
    candidate = Candidate(uuid(1), wanted, 0, 1, worker(1).id, 5000, 0, 10_000)

    assert fits(candidate, worker(1), 4999) == "holdoff"
    assert fits(candidate, worker(1), 5000) is None
    assert fits(candidate, worker(2), 4999) is None
    assert fits(candidate, worker(2), 10_000) == "expired"


# the plan


def fill(connected: Session, count: int, out_of_reach: str = "features = '{vision}'") -> None:
    """A long queue: half of it is out of reach, all of that at the head."""
    connected.execute(
        """
        INSERT INTO queue (request_id, model, partition, rank, waiting, chat, max_length,
            max_context_length, features, images, only_workers, ignore_workers, trusted_workers,
            validated_backends, slow_workers, class, user_id, holdoff_worker, holdoff_ms, ttl,
            created_ms, touched_ms)
        SELECT gen_random_uuid(), 'alpha', 0, -n, 1, true, 100, 1024, '{}', false, '{}', '{}',
            false, false, true, CASE WHEN n <= %(count)s / 2 THEN 'b' ELSE 'a' END, 1, '', 0,
            1000000, 0, 0
        FROM generate_series(1, %(count)s) AS n
        """,
        {"count": count},
    )
    connected.execute(f"UPDATE queue SET {out_of_reach} WHERE class = 'b'".encode())  # noqa: S608 - ours


OUT_OF_REACH = [
    "features = '{vision}'",
    "only_workers = '{somebody}'",
    "ignore_workers = '{me}'",
    "trusted_workers = true",
    "slow_workers = false",
    "validated_backends = true",
    "max_length = 2000",
]
"""Each by its whole class, as `requirement_class` makes them."""


@pytest.mark.parametrize("why", OUT_OF_REACH)
async def test_a_pop_reads_a_few_entries_of_a_long_queue(
    url: str, connected: Session, database: Database, why: str
):
    """By the plan that a connection keeps from the days of an empty queue."""
    plain = offer(speed=4.5)
    for _ in range(8):
        assert await candidates(database, plain, now_ms=1, workers=["me"]) == []
    fill(connected, 5000, why)

    found = await candidates(database, plain, now_ms=1, limit=10, workers=["me"])
    assert [candidate.rank for candidate in found] == list(range(-2501, -2511, -1))

    for analyzed in (False, True):
        if analyzed:
            connected.execute("ANALYZE queue")
        plan = await explained(url, plain)
        nodes = list(walk(plan))
        assert {node["Node Type"] for node in nodes if node.get("Relation Name") == "queue"} <= {
            "Index Scan",
            "Index Only Scan",
        }
        read = sum(
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            for node in nodes
            if node.get("Relation Name") == "queue"
        )
        assert read <= 20


async def explained(url: str, wanted: Offer) -> dict[str, Any]:
    """The plan of the candidate query, with what it really read."""
    plans: list[dict[str, Any]] = []

    class Explaining(Database):
        async def fetch(self, query, parameters=()):  # type: ignore[no-untyped-def]
            rows = await super().fetch(b"EXPLAIN (ANALYZE, FORMAT JSON) " + query, parameters)
            plans.append(rows[0][0][0]["Plan"])
            return []

    explaining = Explaining(url)
    await candidates(explaining, wanted, now_ms=1, limit=10, workers=["me"])
    await explaining.close()
    return plans[0]


def walk(node: dict[str, Any]) -> Any:
    yield node
    for part in node.get("Plans", ()):
        yield from walk(part)


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
        listed = await eligibility.of_users(database, mine, users, now_ms=story.ms)
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

    groups = await eligibility.tally(database, offer())

    assert [(each.requests, each.wanted.chat, each.wanted.models) for each in groups] == [
        (3, True, ("alpha",)),
        (2, False, ("alpha", "beta")),
    ]
    assert [eligibility.refusal(each.wanted, worker()) for each in groups] == ["seed", "worker_id"]
    assert await eligibility.tally(database, offer(chat_jobs=False, prompt_jobs=False)) == []


async def test_a_tally_of_a_long_queue_is_bounded(connected: Session, database: Database):
    fill(connected, 3000)

    groups = await eligibility.tally(database, offer())

    assert sum(group.requests for group in groups) == eligibility.COUNTED
