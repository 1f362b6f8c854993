"""The course: a batch for each manner of the trainer, looked at until four places name the cause."""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from playwright.sync_api import Browser, Error, Page
from tests.causes.cause import CAUSES, Cause, told
from tests.causes.operated_pool import OperatedPool
from tests.causes.pictures import take
from tests.causes.trainer import Manner, Trainer

from rolloutpool_trainer import Batch, RolloutClient

PLACES = ("pool", "viewer", "status", "metric")
LIMIT_SECONDS = 60.0
PAUSE_SECONDS = 0.5
REPORT_SECONDS = 6.0
"""Processes report what they measured every 5 s, so a metric that was just read may not have the batch before yet."""


class Course:
    """One course of one pool."""

    def __init__(self, pool: OperatedPool, browser: Browser, folder: Path, pictures: Path | None) -> None:
        """Prepares the trainer. Files of the course go into the folder, and pictures, unless they are not wanted."""
        self._pool = pool
        self._browser = browser
        self._pictures = pictures
        tokenizer = folder / "tokenizer"
        tokenizer.mkdir()
        self._trainer = Trainer(pool.url, tokenizer)

    def run(self) -> dict[Manner, dict[str, float]]:
        """Goes through all manners.

        Returns:
            For each of them, after how many seconds each place named the cause; without those that did not in time.
        """
        found = {}
        with RolloutClient(self._pool.url) as client:
            for cause in CAUSES:
                with nullcontext() if cause.manner is Manner.DOWN else self._trainer.served():
                    found[cause.manner] = self._try(cause, client)
                print(f"{cause.manner}: {found[cause.manner]}", file=sys.stderr)
        if self._pictures is not None:
            with self._opened("") as page:
                page.locator("tbody tr").first.wait_for()
                take(page, self._pictures, "viewer-batches", height=420)
            self._picture_flower(self._pictures)
        return found

    def _try(self, cause: Cause, client: RolloutClient) -> dict[str, float]:
        time.sleep(REPORT_SECONDS)
        self._trainer.manner = cause.manner
        before = told(self._pool, cause, self._trainer.url)
        begun = time.monotonic()
        batch = client.batch(self._pool.submit(self._trainer.url, cause.manner))
        with self._opened("") as page, self._opened("#/pool") as pool:
            # As a person would find it.
            page.get_by_role("link", name=batch.batch_id[:8]).click()
            found = self._look((page, pool), cause, batch.batch_id, before, begun)
            if self._pictures is not None and "viewer" in found:
                if cause.manner is Manner.BUSY:
                    take(pool, self._pictures, "viewer-pool", height=560)
                self._picture(page, cause, batch, self._pictures)
        if cause.manner is Manner.DOWN:
            batch.cancel()
        self._trainer.manner = Manner.RIGHT
        batch.wait(120)
        return found

    def _look(
        self, pages: tuple[Page, Page], cause: Cause, batch_id: str, before: float, begun: float
    ) -> dict[str, float]:
        (page, pool), url = pages, self._trainer.url

        def shown(where: Page) -> str:
            return " ".join(where.locator("main").inner_text().split())

        def matches(pattern: str, text: str) -> bool:
            return re.search(pattern.replace("URL", re.escape(url)), text, re.DOTALL) is not None

        looks: dict[str, Callable[[], bool]] = {
            "viewer": lambda: matches(cause.viewer, shown(page)),
            "status": lambda: matches(cause.status, self._pool.command("status", batch_id)),
            "metric": lambda: told(self._pool, cause, url) - before >= cause.least,
        }
        if cause.pool is not None:
            looks["pool"] = lambda: matches(str(cause.pool), shown(pool))
        found: dict[str, float] = {}
        while looks and time.monotonic() - begun < LIMIT_SECONDS:
            for place in [place for place, look in looks.items() if look()]:
                found[place] = time.monotonic() - begun
                del looks[place]
            time.sleep(PAUSE_SECONDS)
        if cause.further is not None and "viewer" in found:
            try:
                cause.further(page)
            except Error as error:
                print(f"{cause.manner}: the viewer does not prove it: {error}", file=sys.stderr)
                del found["viewer"]
        for place in looks:
            pages_of = {"viewer": page, "pool": pool}
            told_there = shown(pages_of[place]) if place in pages_of else self._pool.command("status", batch_id)
            print(f"{cause.manner}: {place} does not tell:\n{told_there}", file=sys.stderr)
        return found

    @contextmanager
    def _opened(self, address: str) -> Iterator[Page]:
        context = self._browser.new_context(viewport={"width": 1280, "height": 640})
        page = context.new_page()
        page.set_default_timeout(LIMIT_SECONDS * 1000)
        page.goto(f"{self._pool.url}/ui{address}")
        try:
            yield page
        finally:
            context.close()

    def _picture(self, page: Page, cause: Cause, batch: Batch, folder: Path) -> None:
        if cause.manner is Manner.BUSY:
            page.locator("#row-0").click()
            page.get_by_text(re.compile("Waits for")).wait_for()
            take(page, folder, "viewer-waits", height=240)
        elif cause.manner is Manner.LYING:
            page.locator(".difference").first.scroll_into_view_if_needed()
            take(page, folder, "viewer-proof")
        elif cause.manner is Manner.TEMPLATE:
            take(page, folder, "viewer-failed", height=420)
        elif cause.manner is Manner.RIGHT:
            _annotate(batch)
            with self._opened(f"#/lanes/{batch.batch_id}") as lanes:
                lanes.locator("#row-0 .lane i").first.wait_for()
                take(lanes, folder, "viewer-lanes")
            with self._opened(f"#/group/{batch.batch_id}/g1") as group:
                group.locator(".siblings .strip, .strip").first.wait_for()
                take(group, folder, "viewer-group", height=560)

    def _picture_flower(self, folder: Path) -> None:
        user, password = self._pool.flower_auth
        context = self._browser.new_context(
            viewport={"width": 1280, "height": 520}, http_credentials={"username": user, "password": password}
        )
        page = context.new_page()
        page.goto(f"{self._pool.flower}/tasks")
        page.locator("#tasks-table tbody tr").nth(5).wait_for()
        page.wait_for_timeout(1000)
        take(page, folder, "flower-causes")
        context.close()


def _annotate(batch: Batch) -> None:
    """Rewards short solutions, so that groups have a spread."""
    results = list(batch.results())
    tokens = {result.uid: sum(sum(sample.response_mask) for sample in result.samples) for result in results}
    batch.annotate({"reward": {uid: round(1 - count / 400, 3) for uid, count in tokens.items()}})
