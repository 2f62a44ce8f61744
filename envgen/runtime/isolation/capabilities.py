"""What this machine offers for isolation, asked once by starting a worker that only reports."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from envgen.errors import IsolationError
from envgen.runtime.isolation.limits import GUARANTEES, LAYERS, WorkerLimits, missing
from envgen.runtime.isolation.process import Worker


@dataclass(frozen=True)
class Capabilities:
    """``layers``: layer -> "" or why it is not to be had. ``lacking``: guarantee -> why it cannot be given;
    while there is one, unvetted code is refused. ``problem``: why no worker started at all, or empty."""

    layers: dict[str, str]
    lacking: dict[str, str]
    problem: str = ""

    @property
    def contained(self) -> bool:
        """True when code that is not vetted can be run here."""
        return not self.problem and not self.lacking


@functools.lru_cache(maxsize=1)
def capabilities() -> Capabilities:
    """What a worker on this machine puts on. Starts one, once per process."""
    try:
        worker = Worker(WorkerLimits(accept_without=frozenset(GUARANTEES)))
    except IsolationError as error:
        reason = str(error)
        return Capabilities(
            dict.fromkeys(LAYERS, "no worker"), dict.fromkeys(GUARANTEES, "no worker"), reason
        )
    layers = {name: worker.layers.get(name, "not reported") for name in LAYERS}
    worker.kill()
    return Capabilities(layers, missing(layers))


def isolation_report() -> list[tuple[str, str]]:
    """(name, value) lines for ``envgen doctor`` and ``autoforge doctor``: a verdict, then each layer."""
    found = capabilities()
    if found.problem:
        verdict = f"not possible: {found.problem}"
    elif found.lacking:
        lost = "; ".join(f"{name} ({why})" for name, why in found.lacking.items())
        verdict = f"refused for code that is not vetted, this machine does not guard: {lost}"
    else:
        off = [name for name, reason in found.layers.items() if reason]
        verdict = "ready" + (f", weaker than it could be (without {', '.join(off)})" if off else "")
    lines = [("isolation", verdict)]
    for name, reason in found.layers.items():
        lines.append((f"  {name}", f"missing: {reason}" if reason else f"yes: {LAYERS[name]}"))
    return lines
