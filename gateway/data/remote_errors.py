"""The errors of storages elsewhere: the storages' own codes, and the texts of opendal's errors.

"The library" is opendal.
"""

import re
from typing import Any

from opendal import exceptions

MAX_OWN_WORDS = 300  # characters of a server's code and message that we repeat

# Codes of OSS, COS and OBS for a request with the bucket in its path.
VIRTUAL_ONLY = (
    "SecondLevelDomainForbidden",
    "PathStyleDomainForbidden",
    "VirtualHostDomainRequired",
)
# A storage's own error code -> our reason, and the text that follows the storage's name.
CODES = {
    "NoSuchBucket": ("STORAGE_GONE", "has no such bucket"),
    "QuotaExceeded": ("STORAGE_FULL", "is full: its quota is reached"),
    "DSQuotaExceededException": ("STORAGE_FULL", "is full: its quota is reached"),
    "InvalidAccessKeyId": ("STORAGE_DENIED", "does not know the access key"),
    "SignatureDoesNotMatch": ("STORAGE_DENIED", "does not accept the secret key"),
    **dict.fromkeys(
        VIRTUAL_ONLY, ("STORAGE_ADDRESSING", "takes requests of the virtual-hosted style only")
    ),
    "AccessDenied": ("STORAGE_DENIED", "denies access"),
    "AccessControlException": ("STORAGE_DENIED", "denies access"),
}
# Reasons that do not pass by themselves: an admin has to change something.
LASTING_REASONS = ("STORAGE_GONE", "STORAGE_DENIED", "STORAGE_ADDRESSING")
# All exceptions of the library, which have no common base class.
LIBRARY_ERRORS: Any = tuple(kind for kind in vars(exceptions).values() if isinstance(kind, type))

# Code and message of a server's error, as the library writes them and as S3 sends them.
_OWN_WORDS = (
    re.compile(r'code: "([^"]*)", message: "([^"]*)"'),
    re.compile(r"<Code>([^<]*)</Code>.*?<Message>([^<]*)</Message>", re.DOTALL),
)


def known_code(text: str) -> str:
    """Return the first one of `CODES` that a text has as a whole word; else ""."""
    for code in CODES:
        if re.search(rf"\b{code}\b", text):
            return code
    return ""


def own_words(text: str) -> str:
    """Return code and message of the server's error in a text; "" if the text has none.

    They are cut to `MAX_OWN_WORDS`; unprintable characters become blanks.
    """
    for pattern in _OWN_WORDS:
        match = pattern.search(text)
        if match:
            code, sentence = match.groups()
            line = f"{code}: {sentence}"[:MAX_OWN_WORDS]
            return "".join(c if c.isprintable() else " " for c in line)
    return ""
