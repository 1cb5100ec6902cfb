"""What a URL names, before anything is resolved."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from handlers.chat.images import MAX_URL_CHARACTERS
from handlers.errors import SourceImageUrlRefused
from handlers.fetch.reachable import reachable
from handlers.fetch.targets import Target, address_in, target
from tests.spec import spec

WEB = frozenset({80, 443})
LONG = "a" * 63


@pytest.mark.parametrize(
    ("url", "found", "authority"),
    [
        ("http://a.example", Target("http", "a.example", 80, b"/"), "a.example"),
        ("https://a.example/x.png", Target("https", "a.example", 443, b"/x.png"), "a.example"),
        ("HTTP://A.EXAMPLE:80/", Target("http", "a.example", 80, b"/"), "a.example"),
        ("http://a.example:443/", Target("http", "a.example", 443, b"/"), "a.example:443"),
        ("http://a.example./", Target("http", "a.example", 80, b"/"), "a.example"),
        ("http://a.example?q=1#f", Target("http", "a.example", 80, b"/?q=1"), "a.example"),
        ("http://a.example/a/../b", Target("http", "a.example", 80, b"/b"), "a.example"),
        (
            "http://bücher.example/é?ü=%2f",
            Target("http", "xn--bcher-kva.example", 80, b"/%C3%A9?%C3%BC=%2f"),
            "xn--bcher-kva.example",
        ),
        ("http://1.1.1.1/", Target("http", "1.1.1.1", 80, b"/"), "1.1.1.1"),
        ("http://[2606:4700::0011]/", Target("http", "2606:4700::11", 80, b"/"), "[2606:4700::11]"),
        ("http://a_b.example/", Target("http", "a_b.example", 80, b"/"), "a_b.example"),
        ("http://1.example/", Target("http", "1.example", 80, b"/"), "1.example"),
        ("http://0x.example/", Target("http", "0x.example", 80, b"/"), "0x.example"),
    ],
)
def test_a_url_names_a_host_a_port_and_a_path(url: str, found: Target, authority: str) -> None:
    assert target(url, WEB) == found
    assert found.authority == authority


@spec("Images", 14)
@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.example",
        "//a.example/",
        "file:///etc/passwd",
        "ftp://a.example/",
        "gopher://a.example:80/",
        "javascript:alert(1)",
        "data:image/png;base64,AAAA",
        "http:",
        "http:///a.png",
        "http:a.example",
        "http://?x",
        "http://user@a.example/",
        "http://user:word@a.example/",
        "http://:@a.example/",
        "http://1.1.1.1@a.example/",
        "http://a.example:22/",
        "http://a.example:8080/",
        "http://a.example:0/",
        "http://a.example:-80/",
        "http://a.example:65616/",
        "http://a.example:80:80/",
        "http://a.example:x/",
        "http://a.example\\@b.example/",
        "http:\\\\a.example\\",
        "http://a.example/ x",
        " http://a.example/",
        "http://a.example/\n",
        "http://a.example/\r\nHost: b.example",
        "http://a.example/\x00",
        "http://a.example/\x7f",
        "http://a.example/\u2028",
        "http://a.example/\u200b",
        "http://a.example/\ud83d",
        "http://a b/",
        "http://a%20b/",
        "http://%6c%6f/",
        "http://a,b.example/",
        "http://a..example/",
        "http://.example/",
        "http://a.example../",
        "http://./",
        f"http://{LONG}a.example/",
        f"http://{'.'.join([LONG] * 4)}/",
        "http://[::1/",
        "http://::1/",
        "http://[a.example]/",
        "http://[1.1.1.1]/",
        "http://[v1.x]/",
        "http://xn--\u00fc.example/",
        "http://\uff11\uff12\uff17.0.0.1/",
        "http://a.example/" + "x" * MAX_URL_CHARACTERS,
    ],
)
def test_what_no_image_is_fetched_from_is_refused_by_its_spelling(url: str) -> None:
    with pytest.raises(SourceImageUrlRefused) as refused:
        target(url, WEB)

    assert refused.value.message[:1].islower() or refused.value.message.startswith("the URL")
    assert refused.value.message.endswith(".")


@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "2130706433.",
        "0x7f000001",
        "0X7F.1",
        "0x7f.0.0.0x1",
        "0177.0.0.1",
        "017700000001",
        "127.1",
        "127.0.1",
        "127.0.0.01",
        "127.0.0.1.1",
        "256.1.1.1",
        "0",
        "00",
        "0x",
        "1.2.3.0x4",
        "a.example.1",
        "a.0x7f",
    ],
)
def test_numbers_in_place_of_an_address_are_refused(host: str) -> None:
    with pytest.raises(SourceImageUrlRefused):
        target(f"http://{host}/", WEB)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1.", "127.0.0.1"),
        ("127。0。0。1", "127.0.0.1"),
        ("[::ffff:169.254.169.254]", "::ffff:169.254.169.254"),
        ("[::ffff:a9fe:a9fe]", "::ffff:169.254.169.254"),
        ("[0:0:0:0:0:ffff:7f00:1]", "::ffff:127.0.0.1"),
        ("[fe80::1%25lo]", None),
        ("[fe80::1%lo]", None),
    ],
)
def test_spellings_of_addresses_that_are_valid_are_judged_as_addresses(
    host: str, address: str | None
) -> None:
    found = target(f"http://{host}/", WEB).host

    assert address_in(found)
    assert reachable(found) is None
    assert address is None or reachable(address) is None


def test_only_the_ports_of_the_setting_are_connected_to() -> None:
    assert target("https://a.example/", frozenset({443})).port == 443
    assert target("http://a.example:8080/", frozenset({8080})).port == 8080
    with pytest.raises(SourceImageUrlRefused, match="from ports 443, 8443 only"):
        target("http://a.example/", frozenset({8443, 443}))


@spec("Images", 12)
@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("/b", Target("https", "a.example", 443, b"/b")),
        ("b?y", Target("https", "a.example", 443, b"/x/b?y")),
        ("?y", Target("https", "a.example", 443, b"/x/a?y")),
        ("", Target("https", "a.example", 443, b"/x/a?q")),
        ("//b.example/", Target("https", "b.example", 443, b"/")),
        ("//b.example:80/", Target("https", "b.example", 80, b"/")),
        ("http://b.example/é", Target("http", "b.example", 80, b"/%C3%A9")),
        ("http://[2606:4700::1]:443/", Target("http", "2606:4700::1", 443, b"/")),
    ],
)
def test_a_redirect_is_relative_to_what_redirects(location: str, found: Target) -> None:
    base = target("https://a.example/x/a?q", WEB)

    assert target(location, WEB, base=base) == found


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "//user@b.example/",
        "//b.example:22/",
        "//0x7f.1/",
        "http://[::1",
        "//[::1",
        "/a b",
        "\\\\b.example",
        "\u00e9" * (MAX_URL_CHARACTERS + 1),
    ],
)
def test_a_redirect_is_held_to_the_same_rules(location: str) -> None:
    with pytest.raises(SourceImageUrlRefused):
        target(location, WEB, base=target("http://a.example/", WEB))


URLS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet=string.printable + "éß。", max_size=60),
    st.builds(
        lambda scheme, rest: f"{scheme}://{rest}",
        st.sampled_from(["http", "https", "HTTP", "file"]),
        st.text(alphabet="a1.:[]@/?#%-_x0é。,\\ ", max_size=40),
    ),
)


@settings(deadline=None)  # the machine may be busy
@given(url=URLS, location=URLS)
@example(url="http://a", location="http://[")
@example(url="http://a:1/", location="é" * MAX_URL_CHARACTERS)
def test_whatever_is_written_is_refused_or_named_cleanly(url: str, location: str) -> None:
    base = target("https://a.example/x/a?q", WEB)
    for text, beside in ((url, None), (location, base)):
        try:
            found = target(text, WEB, base=beside)
        except SourceImageUrlRefused:
            continue
        assert found.scheme in {"http", "https"}
        assert found.port in WEB
        assert found.host
        assert found.path.startswith(b"/")
        for said in (found.path.decode("ascii"), found.authority):
            assert not set(said) - set(string.printable.strip())
