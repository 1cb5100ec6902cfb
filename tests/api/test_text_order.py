"""The order of a text submission: what fails two checks gets the earlier one's refusal, and nothing
is stored (text_path_reference.md 3.3; sizing comes first, as the specification's Routes say)."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from handlers.accounts import open_account
from handlers.modes import set_modes
from tests.api.site import SECRET, Site, opened
from tests.spec import spec

ASYNC = "/v2/generate/text/async"
NOBODY = "00000000-0000-4000-8000-000000000000"
LONG = "x" * 4 * 2048
ADDRESS = "127.0.0.1"
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Check(NamedTuple):
    """A check, and what makes it fail."""

    rc: str
    status: int
    body: Mapping[str, Any] = NOTHING
    params: Mapping[str, Any] = NOTHING
    key: str | None = ""
    """What is sent instead of the key; None: nothing."""
    around: str = ""
    """What holds of the service."""


CHECKS = [
    Check("BadRequest", 400, {"slow_workers": 1}),
    Check("BadRequest", 400, {"webhook": "https://example.org"}),
    Check("BadRequest", 400, key=None),
    Check("PromptExceedsContext", 400, {"prompt": LONG, "context_fit": "reject"}),
    Check("MaintenanceMode", 400, around="maintenance"),
    Check("InvalidAPIKey", 401, key="nobody's"),
    Check("OnlyServiceAccountProxy", 400, {"proxied_account": "somebody"}),
    Check("TooManyExtraSourceImages", 400, {"extra_source_images": ["x"] * 6}),
    Check("MoreThanMinExtraSourceImage", 400, {"extra_source_images": ["x"] * 2}),
    Check("MissingPrompt", 400, {"prompt": ""}),
    Check("WorkerNotFound", 404, {"workers": [NOBODY]}),
    Check("RequiresTrust", 400, {"disable_batching": True}, {"n": 4}),
    Check("TooManyPrompts", 429, params={"n": 4}),
    Check("TimeoutIP", 403, around="timeout"),
    Check("CorruptPrompt", 400, {"prompt": "forbidden"}),
    Check("TokenOverflow", 400, params={"max_context_length": 80, "max_length": 81}),
    Check("MissingFullSamplerOrder", 400, params={"sampler_order": [1]}),
    Check("TooManyStopSequences", 400, params={"stop_sequence": [str(n) for n in range(129)]}),
    Check("InvalidExtraSourceImages", 400, {"extra_source_images": ["x"]}),
]
UPFRONT = Check("KudosUpfront", 403, {"slow_workers": False})
LONG_STOP = Check("ExcessiveStopSequence", 400, params={"stop_sequence": ["x" * 2001]})


@pytest.fixture
async def strict(redis_url: str, migrated_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    """A site with a filter, three waiting jobs for each account, and a flagged client."""
    filters = tmp_path / "filters.json"
    filters.write_text(json.dumps([{"regex": "forbidden", "replacement": ""}]))
    settings = {"concurrency": 3, "replacement_filters": str(filters)}
    async with opened(redis_url, migrated_url, **settings) as site:
        _, site.client_key = await open_account(site.parts.log, SECRET, "bad", flagged=True)
        await site.settle()
        await site.project()
        yield site


@contextlib.asynccontextmanager
async def held(site: Site, around: set[str]) -> AsyncIterator[None]:
    """These hold of the service."""
    if "maintenance" in around:
        await set_modes(site.parts.log, site.parts.limits, maintenance=True)
    if "timeout" in around:
        await site.parts.timeouts.set(ADDRESS, 1)
    yield
    if "maintenance" in around:
        await set_modes(site.parts.log, site.parts.limits, maintenance=False)
    if "timeout" in around:
        await site.parts.timeouts.clear(ADDRESS)


async def refused(site: Site, earlier: Check, *later: Check, dry_run: bool = False) -> None:
    """What fails these checks is refused by the first of them, and leaves nothing behind."""
    checks = (earlier, *later)
    body: dict[str, Any] = {"prompt": "Once", "params": {}, "dry_run": dry_run}
    key: str | None = site.client_key
    for check in reversed(checks):
        body |= check.body
        body["params"] |= check.params
        key = check.key if check.key != "" else key
    async with held(site, {check.around for check in checks}):
        await site.settle()
        await site.project()
        before = await site.state()

        answer = await site.post(ASYNC, body, key)

        said = [check.rc for check in checks]
        assert (answer.status_code, answer.json()["rc"]) == (earlier.status, earlier.rc), said
        assert await site.state() == before, said


@spec("Text requests", 1, 3, 4, 5, 7, 11, 13, 19)
async def test_every_check_refuses_and_of_two_the_earlier_one(strict: Site) -> None:
    site = strict
    for check in (*CHECKS, LONG_STOP):
        await refused(site, check)
    await refused(site, UPFRONT)
    for earlier, later in itertools.pairwise((*CHECKS, UPFRONT)):
        await refused(site, earlier, later)


@spec("Text requests", 10)
async def test_a_dry_run_is_refused_like_a_real_one(strict: Site) -> None:
    for check in (*CHECKS, LONG_STOP):
        await refused(strict, check, dry_run=True)


@spec("Text requests", 9, 19)
async def test_jobs_that_wait_count_and_those_that_a_worker_holds_do_not(strict: Site) -> None:
    site = strict

    async def submit(jobs: int) -> str:
        body = {"prompt": "Once", "params": {"n": jobs}}
        answer = await site.post(ASYNC, body, site.client_key)
        await site.settle()
        return str(answer.json().get("rc", answer.status_code))

    first = [await submit(2), await submit(2), await submit(1), await submit(1)]
    await site.project()
    await site.popped(amount=2)
    await site.settle()

    assert first == ["202", "TooManyPrompts", "202", "TooManyPrompts"]
    assert [await submit(3), await submit(2)] == ["TooManyPrompts", "202"]


@spec("Text requests", 13, 17)
async def test_what_moderation_rewrote_is_what_workers_get_and_nobody_is_told(
    strict: Site,
) -> None:
    site = strict
    body = {"prompt": "a forbidden word", "params": {"max_length": 16}}

    answer = await site.post(ASYNC, body, site.client_key)
    await site.project()
    job = await site.popped()
    path = f"/v2/generate/text/request/{answer.json()['id']}"
    told = await site.http.get(path, headers={"apikey": site.client_key})
    quoted = await site.post(ASYNC, body | {"dry_run": True}, site.client_key)

    assert job["payload"]["prompt"] == "a  word"
    assert told.json()["prompt"] == "a forbidden word"
    assert quoted.json()["resolved"]["prompt"] == "a forbidden word"
