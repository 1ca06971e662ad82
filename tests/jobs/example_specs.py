"""The specs of the examples, in any policy."""

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def with_policy(example: str, spec: Path, *, emit: str, late: str) -> Path:
    """Writes an example's spec under another policy; its model stays where it is."""
    text = (EXAMPLES / example / f"{example}.toml").read_text()
    text = re.sub(r'(?m)^emit = "\w+"', f'emit = "{emit}"', text)
    text = re.sub(r'(?m)^late = "\w+"', f'late = "{late}"', text)
    spec.write_text(re.sub(r'(?m)^path = "', f'path = "{EXAMPLES / example}/', text))
    return spec
