"""What exit codes mean that a program does not choose itself: a shell's, and those of what starts programs."""

NEVER_BEGAN = (126, 127)
_WANTS_MEMORY = (6, 7, 9, 11)
"""signals of which a program ends that gets no more memory: it gives up, meets what is not there, or is killed"""
_MEANINGS = {
    126: "what it was to run is there and cannot be executed: a file without the right to be, or one that was "
    "built for another kind of machine",
    127: "what it was to run was not found: a program that the image does not have, such as the interpreter in a "
    "script's first line or the program behind env",
}


def meaning(code: int) -> str:
    """Return in words what a code says by convention; empty for one that is the program's own."""
    return _MEANINGS.get(code, "")


def under_a_limit(code: int) -> str:
    """Return what a code may say of a program whose memory is limited; empty for one that says nothing of it."""
    return "its memory is limited, and programs that get no more end so" if code - 128 in _WANTS_MEMORY else ""
