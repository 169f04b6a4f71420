"""The colours of drawings: on white, on black if the reader prefers that, and on paper."""

_LIGHT = "--back:#fff;--text:#1b1f24;--dim:#57606a;--line:#8c959f;--good:#116329;--odd:#7d4e00;--bad:#a40e26"
_DARK = "--back:#0d1117;--text:#e6edf3;--dim:#9da7b3;--line:#6e7681;--good:#56d364;--odd:#e3b341;--bad:#ff7b72"

FALLBACK = {"plain": "#1b1f24", "good": "#116329", "odd": "#7d4e00", "bad": "#a40e26"}
"""The light colours by tone, for attributes."""

PAPER = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
"""
"""CSS for pages and pictures. Every text colour has a contrast of at least 4.5 on its background."""
