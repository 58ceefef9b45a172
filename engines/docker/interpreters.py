"""What a script needs besides itself: the program in its first line.

Without it the kernel reports that the script itself is gone. Pure but for what it asks of a container's files.
"""

import posixpath
from collections.abc import Callable, Sequence

from engines.base import CommandNotFound

HEAD = 256
"""bytes of a file that Linux reads for its first line"""
_OPTIONS_WITH_VALUE = ("-u", "--unset", "-C", "--chdir")


def check_script(
    script: str, head: bytes, search: Sequence[str], is_executable: Callable[[str], bool | None]
) -> None:
    """Raise `CommandNotFound` if the program that the first line of a file asks for is not there.

    ``search``: the folders of PATH. ``is_executable`` is None where it cannot be told: then nothing is raised.
    """
    if not head.startswith(b"#!"):
        return
    line = head[2:HEAD].split(b"\n")[0].decode("utf-8", "replace")
    program, _, rest = line.strip(" \t").partition(" ")
    wrong = f"the image's {script} begins with #!{line.strip()}, and there is no executable"
    if line.endswith("\r"):
        raise CommandNotFound(
            f"the first line of the image's {script} ends like a Windows file's (CR LF), so its interpreter "
            f"{program.strip()!r} is not found: save the file with Unix line ends"
        )
    if not program:
        return
    if is_executable(program) is False:
        raise CommandNotFound(f"{wrong} {program} in it")
    check_env(program, rest.split(), search, is_executable, wrong)


def check_env(
    program: str,
    words: Sequence[str],
    search: Sequence[str],
    is_executable: Callable[[str], bool | None],
    wrong: str = "",
) -> None:
    """Raise `CommandNotFound` if ``env`` is to start a program that is not on the search path."""
    if posixpath.basename(program) != "env":
        return
    wanted = _started_by_env(words)
    if not wanted:
        return
    places = [wanted] if "/" in wanted else [posixpath.join(folder, wanted) for folder in search]
    if all(is_executable(place) is False for place in places):
        where = "in it" if "/" in wanted else f"on its PATH ({':'.join(search)})"
        raise CommandNotFound(f"{wrong or 'the image starts env, and there is no executable'} {wanted} {where}")


def _started_by_env(words: Sequence[str]) -> str:
    """Return the program among the words for ``env``; empty where that is not clear."""
    left = list(words)
    while left:
        word = left.pop(0)
        if word in _OPTIONS_WITH_VALUE:
            del left[:1]
        elif word.startswith("-S") and word != "-S":
            return ""
        elif not word.startswith("-") and "=" not in word:
            return word
    return ""
