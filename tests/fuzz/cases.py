"""What seeds found once, shrunk: each failed before its bug was mended."""

from __future__ import annotations

from tests.fuzz.case import Case, case

CASES: dict[str, Case] = {
    # The other instance was in Dask's table and never started; leaving raised.
    "registered over, and nothing happens": case(
        spec={"a-0": []},
        outputs=["a-0"],
        steps=[
            (0.01, "register over", 528157),
        ],
        settled=True,
    ),
    # A side came to a worker whose plugins were torn down already; its thread stayed.
    "registered over while a worker closes": case(
        spec={"a-0": [], "b-0": ["a-0"]},
        outputs=["b-0"],
        steps=[
            (0.01, "register over", 605889),
            (0, "racing close", 189993),
            (0, "register over", 605890),
            (0, "racing close", 189994),
        ],
        marked=["a-0", "b-0"],
        workers=4,
        settled=True,
    ),
    # Leaving while it still started: sides were handed to workers behind their removal.
    "registered over, and leaving at once": case(
        spec={"a-0": [], "b-0": ["a-0"]},
        outputs=["b-0"],
        steps=[
            (0.01, "register over", 528157),
            (0, "uninstall", 42),
        ],
        marked=["b-0"],
        workers=4,
        settled=True,
    ),
}
