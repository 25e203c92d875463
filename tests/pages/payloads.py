"""Every text of a record, an outcome or a sheet replaced by one that tries to be markup, a link, a script or a command."""

from __future__ import annotations

from typing import Any

AWAY = "https://example.invalid/"
FORM = f'<form action="{AWAY}f" style="position:fixed;inset:0"><button autofocus onfocus="window.__pwned=1">'
TRIES = (  # each begins with what would end the place where it stands
    f'"><meta http-equiv="refresh" content="0;url={AWAY}m"><base href="{AWAY}">',
    f"'>{FORM}",
    "</script><script>window.__pwned=2</script>",
    f'</title></style><iframe src="{AWAY}i"></iframe>',
    '--><img src=x onerror="window.__pwned=3"><svg onload="window.__pwned=4">',
    f'<a href="{AWAY}a" target="_top"><span style="font-size:99px">%{{x}}</span></a>',
    '<a href="javascript:window.__pwned=5">$\\frac{</a>{0}{',
    "\x1b[2J\x9b31m\u202e[bold red]x[/bold red][/zz]`` `",
)
FIXED = {"format", "kind", "style", "version"}  # words that a file may not choose freely


def poisoned(data: Any, *, keys: bool = False) -> tuple[Any, set[str]]:
    """Plain data with a payload in every free text, all of them different, and the names of the fields that have one.

    `keys`: names in free objects (settings, provenance) too.
    """
    touched: set[str] = set()
    count = 0

    def payload() -> str:
        nonlocal count
        count += 1
        return f"[/zz]\x1b[31m{count}{TRIES[count % len(TRIES)]}{count}"

    def replaced(value: Any, field: str, free: bool) -> Any:
        if isinstance(value, str) and field not in FIXED:
            touched.add(field)
            return payload()
        if isinstance(value, dict):
            free = free or field in ("settings", "provenance")
            return {
                (payload() if keys and free else key): replaced(v, field if free else key, free)
                for key, v in value.items()
            }
        return [replaced(v, field, free) for v in value] if isinstance(value, (list, tuple)) else value

    return replaced(data, "", False), touched
