"""`make fuzz FUZZ_S=60`: every parser in a process with limits of memory and time, on mutated small files.

The inputs follow from seeds, so what killed the process can be made again: it is saved to fuzz-found/PARSER-SEED.bin.
Exit codes: 0 nothing was found; 1 something was. `fuzz.py replay FILE` feeds one saved input.
"""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

MEMORY_BYTES = 2 << 30
"""What a parser may take beyond what the process has when it starts."""
START_S = 60.0


def serve() -> None:
    """The process that may die: for each line "parser first-seed seconds", the seeds and what came of each."""
    from fuzz_parsers import PARSERS, corpora, mutated, run_one

    known = dict(corpora(tuple(PARSERS)))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    print(json.dumps({"ready": {name: PARSERS[name].limit_s for name in PARSERS}}), flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff and others tell every fault there
    for line in sys.stdin:
        name, first, seconds = line.split()
        seed, end = int(first), time.monotonic() + float(seconds)
        while time.monotonic() < end:
            print(json.dumps({"seed": seed}), flush=True)
            answer = {"was": "", "why": ""}
            try:
                answer["was"] = run_one(PARSERS[name], mutated(known[name], PARSERS[name], seed))
            except BaseException:  # noqa: BLE001  # whatever it is: it is what is looked for
                answer = {"was": "fault", "why": traceback.format_exc(limit=-6)}
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            print(json.dumps({**answer, "peak": peak}), flush=True)
            seed += 1
        print(json.dumps({"done": seed}), flush=True)


class Child:
    """The parent's end."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self._buffer = b""
        ready = self.line(START_S)
        if ready is None:
            raise SystemExit("fuzz: the process with the parsers does not start")
        self.limits: dict[str, float] = ready["ready"]

    def ask(self, text: str) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def line(self, seconds: float) -> dict | None:
        """The next line; None when it does not come in time or the process is dead."""
        assert self.process.stdout is not None
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return None
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                return None
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def end(self) -> int:
        """Leave nothing running; what it died of by itself, 0 when it lived."""
        try:
            died = self.process.wait(0.5)  # its pipe closes a little before
        except subprocess.TimeoutExpired:
            died = 0
        self.process.kill()
        self.process.communicate()
        return died


class Run:
    """One run over all parsers."""

    def __init__(self, found: Path) -> None:
        self.child = Child()
        self.found = found
        self.faults: dict[str, list[str]] = {}
        """What went wrong (a traceback without the values in its last line) → the inputs."""

    def parser(self, name: str, first: int, seconds: float) -> Counter:
        """Feed one parser for so long."""
        counts: Counter = Counter()
        end, seed = time.monotonic() + seconds, first
        while seconds > 0:
            self.child.ask(f"{name} {seed} {seconds}")
            seed = self._listen(name, seed, counts)
            seconds = end - time.monotonic() if seed else 0
        return counts

    def _listen(self, name: str, seed: int, counts: Counter) -> int:
        """Until the child is done (0), or dies: then the seed to go on with."""
        while True:
            line = self.child.line(self.child.limits[name])
            if line is None:
                died = self.child.end()
                self._fault(name, seed, f"died of {died}" if died else "did not end in time")
                counts["fault"] += 1
                self.child = Child()
                return seed + 1
            if "done" in line:
                return 0
            if "seed" in line:
                seed = line["seed"]
                continue
            counts[line["was"]] += 1
            counts["peak"] = max(counts["peak"], line["peak"])
            if line["was"] == "fault":
                self._fault(name, seed, line["why"])

    def _fault(self, name: str, seed: int, why: str) -> None:
        from fuzz_parsers import PARSERS, corpora, mutated

        self.found.mkdir(exist_ok=True)
        path = self.found / f"{name}-{seed}.bin"
        path.write_bytes(mutated(dict(corpora((name,)))[name], PARSERS[name], seed))
        lines = why.strip().splitlines()
        said = "\n".join([f"{name}:", *lines[:-1], lines[-1].partition(":")[0]])
        self.faults.setdefault(said, []).append(str(path))


def main() -> int:
    """Divide the time among the parsers."""
    if sys.argv[1:2] == ["serve"]:
        serve()
        return 0
    if sys.argv[1:2] == ["replay"]:
        from fuzz_parsers import PARSERS, run_one

        path = Path(sys.argv[2])
        print(run_one(PARSERS[path.stem.rpartition("-")[0]], path.read_bytes()))
        return 0
    seconds, first = float(os.environ.get("FUZZ_S", "60")), int(os.environ.get("FUZZ_SEED", "0"))
    run = Run(Path(os.environ.get("FUZZ_FOUND", "fuzz-found")))
    names = list(run.child.limits)
    total: Counter = Counter()
    for name in names:
        counts = run.parser(name, first, seconds / len(names))
        total += counts
        inputs = counts["ok"] + counts["refused"] + counts["fault"]
        print(
            f"{name:<12}{inputs:>8,} inputs {counts['ok']:>8,} read {counts['refused']:>8,} refused "
            f"{counts['fault']:>4} faults  {counts['peak'] >> 20:>6,} MiB at most",
            flush=True,
        )
    run.child.process.kill()
    run.child.end()
    for fault, paths in run.faults.items():
        print(f"{len(paths)} times, as {paths[0]}: {fault}")
    print(f"fuzz: {total['ok'] + total['refused'] + total['fault']:,} inputs, {total['fault']} faults")
    return 1 if total["fault"] else 0


if __name__ == "__main__":
    sys.exit(main())
