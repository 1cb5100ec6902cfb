"""What a client pays for what it got, from the submit to the account."""

from __future__ import annotations

import json
from pathlib import Path

from events.base import KUDOS
from tests.api.site import BODY, Site, opened
from tests.spec import spec

SMALL, LARGE = "small/model", "large/model"
MODELS = {SMALL: {"parameters": 8_000_000_000}, LARGE: {"parameters": 70_000_000_000}}
VALIDATED = {"bridge_agent": "TabbyAPI:1.0:x"}


async def kudos(site: Site) -> float:
    """What the client has."""
    account = await site.parts.accounts.find(site.client_key)
    value = await site.parts.log.read("HGET", site.parts.log.keys.account(account.id), "kudos")
    return int(value) / KUDOS


@spec("Pricing", 1, 8, 9)
async def test_a_reply_is_charged_by_its_text_at_the_model_that_gave_it(
    redis_url: str, migrated_url: str, tmp_path: Path
) -> None:
    """200 tokens of either family; counts that a worker reports are told and change nothing."""
    known = tmp_path / "models.json"
    known.write_text(json.dumps(MODELS))
    told = []
    settings = {"text_model_reference": str(known)}
    async with opened(redis_url, migrated_url, served=False, **settings) as site:
        await site.pop(models=[LARGE], model_id=LARGE, **VALIDATED)
        await site.project()
        for text in (False, True):
            before = await kudos(site)
            if text:
                body = {"prompt": "hi", "models": [SMALL, LARGE], "params": {"max_length": 512}}
                answer = await site.post("/v2/generate/text/async", body, site.client_key)
            else:
                body = BODY | {"models": [SMALL, LARGE]}
                del body["model"]
                answer = await site.post("/v2/generate/chat/async", body, site.client_key)
            assert answer.status_code == 202, answer.text
            await site.project()
            job = await site.popped(models=[LARGE], model_id=LARGE, **VALIDATED)
            sent = {"message": {"role": "assistant", "content": "x" * 800}, "model_id": LARGE}
            if text:
                reply = {"id": job["id"], "generation": "x" * 800}
                answer = await site.post("/v2/generate/text/submit", reply, site.owner_key)
            else:
                answer = await site.reply(job["id"], completion_tokens=10_000, **sent)
            await site.settle()
            told.append((answer.json(), round(before - await kudos(site), 4)))
    # 200 × 70 × (70 / 13) ** 0.2 / 125 × (1.2 + 2.2 ** log2(20 / 1024)), and 1 of tax, 1 burned
    assert told == [({"reward": 189.99}, 191.99)] * 2


@spec("Pricing", 12)
async def test_a_job_on_its_way_is_paid_for_after_a_cancel(site: Site) -> None:
    before = await kudos(site)
    request_id = await site.queued()
    await site.project()
    job = await site.popped()
    await site.cancel(request_id)

    answer = await site.reply(job["id"])

    await site.settle()
    assert (answer.status_code, answer.json()) == (200, {"reward": 1.2114})
    assert round(before - await kudos(site), 4) == 3.2114
