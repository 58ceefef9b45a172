"""Files that hold, to the byte, what this gateway says. A change of one is a change of the contract with others.

With REGENERATE_GOLDEN set in the environment each file is written anew and its test fails all the same, so that
somebody looks at the difference before it is checked in.
"""

import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("golden")


def check(name: str, value: Any) -> None:
    """Assert that a JSON value is what the golden file of this name holds, byte for byte."""
    path = FOLDER / f"{name}.json"
    said = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    if os.environ.get("REGENERATE_GOLDEN"):
        path.write_text(said, encoding="utf-8")
        raise AssertionError(f"{path.name} is written anew; look at what has changed")
    assert said == path.read_text(encoding="utf-8")
