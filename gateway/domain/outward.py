"""What other institutions may read of a failure here: the words, and not where things lie on our machines."""

import re

_PATH = re.compile(
    r"(?:(?<![\w/.…~-])|(?<=unix://)|(?<=file://))"  # where a word begins: inside of an address it stays
    r"/(?!v\d+/|api/|bfia/)"  # our paths on the wire, and the folders that every container has
    r"(?:[^\s/'\":,;()<>]+/)+"
    r"(?P<last>[^\s/'\":,;()<>]*)"
)


_QUOTED = re.compile(
    r"(?<=['\"])/(?!v\d+/|api/|bfia/)(?:[^\n'\"/]+/)+(?P<last>[^\n'\"/]*)(?=['\"])"  # blanks belong to it
)


def without_folders(text: str) -> str:
    """Return the text with the last part alone of each absolute path of two parts and more.

    What is no path stays: addresses, names of images, paths of the protocols.
    """
    for pattern in (_QUOTED, _PATH):
        text = pattern.sub(lambda found: f"…/{found['last']}", text)
    return text
