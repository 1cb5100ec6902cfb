"""Processes end when they are told to, whatever the object store does."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time

import redis

from events.keys import PARTITIONS
from handlers.objects import image_key

SOMEBODY = "3f0c6a5e-7f52-4a49-8a55-6d0c9f1e2a33"


def test_a_janitor_that_waits_for_a_store_that_hangs_ends_at_once(
    redis_url: str, migrated_url: str
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.sadd("horde:chat:image_delete_retry", image_key(SOMEBODY, 0))
        client.set(PARTITIONS, 1)  # or it would ask the store for an older log first
        client.hset("horde:control", "last_ms", 0)
    with socket.create_server(("127.0.0.1", 0)) as store:
        store.settimeout(20)
        environ = {
            "PATH": os.environ["PATH"],
            "REDIS_URL": redis_url,
            "DATABASE_URL": migrated_url,
            "HORDE_SECRET": "x",
            "S3_ENDPOINT_URL": f"http://127.0.0.1:{store.getsockname()[1]}",
            "S3_ACCESS_KEY": "a",
            "S3_SECRET_KEY": secrets.token_hex(),
        }
        command = [sys.executable, "-m", "hordechat", "janitor"]
        with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as janitor:
            waiting, _ = store.accept()
            with waiting:
                waiting.recv(1)
                janitor.send_signal(signal.SIGTERM)
                told = time.monotonic()
                assert janitor.wait(20) == 0
                assert time.monotonic() - told < 4  # a call to the store may take 5 s
