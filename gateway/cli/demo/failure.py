"""The demo's failure."""


class DemoFailed(Exception):
    """The demo cannot continue; the text is the cause."""
