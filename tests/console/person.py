"""A person at the console of a node, in a browser."""

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, expect

from tests.console import translator

WAIT = 60_000  # ms; only ends a hang


def open_tab(
    browser: Browser,
    language: str,
    **options: Any,
) -> Page:
    """Open an empty page in which an error of a script fails the test.

    ``options`` are further ones of the browser's context.
    """
    context = browser.new_context(locale=language, **options)
    context.set_default_timeout(WAIT)
    page = context.new_page()
    page.on("pageerror", fail)
    page.on("requestfailed", report_failed_request)
    return page


def report_failed_request(request: Request) -> None:
    """Print why a request had no response, for the report of a test that fails."""
    print(f"{request.method} {request.url}: {request.failure}")


def fail(error: object) -> None:
    """Fail the test for an error of a script."""
    pytest.fail(f"the page failed: {error}")


class Person:
    """Clicks, types and reads in a page of the console.

    A parameter ``key`` is the key of one of the console's texts; the person reads the text in the
    page's language.
    """

    def __init__(
        self,
        page: Page,
        language: str,
    ) -> None:
        self.page = page
        self.say = translator(language)
        self.dialog = page.locator("dialog")
        self.heading = page.locator("main h1")
        self.notices = page.locator("#notices")
        self.alert = page.get_by_role("alert")
        # The job as JSON.
        self.json = page.locator("textarea")

    # ------------------------------------------------------------ acts

    def log_in(
        self,
        address: str,
        token: str,
    ) -> None:
        """Open the console at a node's address and log in."""
        self.page.goto(f"{address}/")
        self.fill("token", token)
        self.page.locator("form button").click()
        expect(self.page.locator("nav")).to_be_visible()

    def go(self, name: str) -> None:
        """Open a page by the navigation."""
        link = f"nav a[href='#/{name}']"
        self.page.locator(link).click()
        current = self.page.locator(f"{link}[aria-current=page]")
        expect(current).to_be_visible()
        expect(self.heading).to_be_visible()

    def button(self, key: str) -> Locator:
        return self.page.get_by_role(
            "button",
            name=self.say(key),
            exact=True,
        )

    def press(self, key: str) -> None:
        self.button(key).click()

    def link(self, key: str) -> Locator:
        return self.page.get_by_role(
            "link",
            name=self.say(key),
            exact=True,
        )

    def follow(self, key: str) -> None:
        """Click on a link."""
        self.link(key).click()

    def unfold(self, key: str) -> None:
        """Click on the title of a folded part of the page."""
        title = self.page.locator(
            "summary",
            has_text=self.say(key),
        )
        title.click()

    def field(self, key: str) -> Locator:
        return self.page.get_by_label(self.say(key))

    def fill(self, name: str, text: str) -> None:
        """Type into the input with a name, and stay in it."""
        self.named_input(name).fill(text)

    def named_input(self, name: str) -> Locator:
        return self.page.locator(f"input[name='{name}']")

    def error_at(self, name: str) -> Locator:
        """Return the error at the dialog's input of a name."""
        field = self.page.locator(f"[name={name}]")
        label = self.dialog.locator("label", has=field)
        return label.locator(".field-error")

    def enter(self, field: Locator, text: str) -> None:
        """Type into a field and leave it, on which the page reads it."""
        field.fill(text)
        self.page.keyboard.press("Tab")

    def search(self, name: str, text: str) -> None:
        """Type into the input with a name and leave it."""
        self.enter(self.named_input(name), text)

    def choose_file(self, file: Path) -> None:
        chooser = self.page.locator("input[type=file]")
        chooser.set_input_files(file)

    def confirm(self, **fields: str) -> None:
        """Fill named inputs of the dialog and click on its main button."""
        for name, text in fields.items():
            field = self.dialog.locator(f"input[name={name}]")
            field.fill(text)
        self.dialog.locator("button.main").click()

    def confirm_danger(self) -> None:
        """Click on the dialog's button for a change that cannot be undone."""
        self.dialog.locator("button.danger").click()

    def keep_picture(self, name: str) -> None:
        """Write a picture of the page into the folder that BFIA_SCREENSHOTS names."""
        folder = os.environ.get("BFIA_SCREENSHOTS")
        if folder:
            self.page.screenshot(
                path=f"{folder}/{name}.png",
                full_page=True,
            )

    # ------------------------------------------------------------ contents of the page

    def section(self, key: str) -> Locator:
        """Return the part of the page below a heading."""
        heading = self.page.get_by_role(
            "heading",
            name=self.say(key),
            exact=True,
        )
        return self.page.locator("section", has=heading)

    def cell(
        self,
        text: str,
        exact: bool = True,
    ) -> Locator:
        return self.page.get_by_role(
            "cell",
            name=text,
            exact=exact,
        )

    def sees(self, text: str) -> None:
        """Wait for the only occurrence of a text."""
        expect(self.page.get_by_text(text)).to_be_visible()

    def sees_first(self, text: str) -> None:
        """Wait for a text that may occur several times."""
        occurrences = self.page.get_by_text(text)
        expect(occurrences.first).to_be_visible()

    def sees_heading(self, text: str) -> None:
        heading = self.page.get_by_role("heading", name=text)
        expect(heading).to_be_visible()

    def sees_cell(self, text: str) -> None:
        """Wait for the only cell with exactly a text."""
        expect(self.cell(text)).to_be_visible()

    def sees_outcome(self, status: str) -> None:
        """Wait until a job's page shows a status; the page updates without a reload."""
        badge = self.page.locator("main .row .badge").first
        expect(badge).to_have_text(self.say(f"={status}"))
