"""Agreement before and after each moment of a run of fault_agreement.py, as a table. Standard library only."""
from collections import Counter

SOON_S = 2.0        # by then agreement is to be back
MARK = 0.02         # how far it may be below its former level
KINDS = ("all", "known", "unknown")


class Level:
    """Samples of a window, by their result."""

    def __init__(self, counts, unanswered=0):
        self.counts, self.unanswered = counts, unanswered
        self.samples = counts.total()

    @classmethod
    def of(cls, grown, kind):
        """`grown`: by result and kind of prompt."""
        counts = Counter()
        for (result, prompt), number in grown.items():
            if kind in ("all", prompt):
                counts[result] += number
        return cls(counts, counts.pop("unanswered", 0))

    def __add__(self, other):
        return Level(self.counts + other.counts, self.unanswered + other.unanswered)

    @property
    def share(self):
        return self.counts["same"] / self.samples if self.samples else None

    @property
    def variance(self):
        """Standard error of the share, with one more sample on either side: equal samples do not mean no error."""
        share = (self.counts["same"] + 1) / (self.samples + 2)
        return share * (1 - share) / (self.samples + 2)

    @property
    def why(self):
        return ", ".join(f"{result} {n}" for result, n in self.counts.most_common() if result != "same" and n)


def rows_of(scene):
    """One row for each moment and kind of prompt."""
    found = []
    for at, moment in enumerate(scene.moments):
        start, begins = moment["at"], moment["begins"]
        later = scene.moments[at + 1]["at"] if at + 1 < len(scene.moments) else float("inf")
        end = min(start + scene.a.after, later)
        windows = ((begins - scene.a.before, begins), (start, min(start + SOON_S, end)), (start + SOON_S, end))
        counts = [scene.watch.between(*window) if window[1] > window[0] else Counter() for window in windows]
        ended = [o for o in scene.load.outcomes if start <= o.ended_at < end]
        failed = [o for o in ended if not o.ok]
        explained = sum(map(scene.explains, failed))
        for kind in KINDS:
            before, soon, then = (Level.of(part, kind) for part in counts)
            found.append({"fault": moment["fault"], "what": moment["what"], "kind": kind, "before": before,
                          "soon": soon, "then": then, "requests": len(ended), "explained": explained,
                          "failed": len(failed) - explained, "load_average": moment["load_average"]})
    return found


def together(rows):
    """Rows of the same moment in all rounds as one."""
    groups = {}
    for row in rows:
        key = row["fault"], row["what"], row["kind"]
        if key not in groups:
            groups[key] = dict(row)
            continue
        for name in ("before", "soon", "then", "requests", "explained", "failed"):
            groups[key][name] += row[name]
        groups[key]["load_average"] = max(groups[key]["load_average"], row["load_average"])
    return list(groups.values())


def held(row):
    """Whether agreement was back in time: "yes", "NO", "unsure" for a miss within the noise, "-" without samples."""
    before, then = row["before"].share, row["then"].share
    if before is None or then is None:
        return "-"
    if before - then <= MARK:
        return "yes"
    return "NO" if before - then > 2 * noise(row) else "unsure"


def noise(row):
    """Standard error of the difference."""
    return (row["before"].variance + row["then"].variance) ** 0.5


def print_table(rows):
    print(f"\n| fault | prompts | before | first {SOON_S:g} s | then | difference | noise "
          f"| within {MARK:g} after {SOON_S:g} s | samples | unanswered | why, then | requests | failed (explained) "
          "| load average |\n" + "|---" * 14 + "|")
    for row in rows:
        levels = row["before"], row["soon"], row["then"]
        shares = " | ".join("-" if level.share is None else f"{level.share:.3f}" for level in levels)
        verdict, before, then = held(row), row["before"], row["then"]
        change = "- | - | -" if verdict == "-" else (
            f"{then.share - before.share:+.3f} | {noise(row):.3f} | {verdict}")
        whole = f"{row['requests']} | {row['failed']} ({row['explained']}) | {row['load_average']:.1f}"
        print(f"| {row['fault']}: {row['what']} | {row['kind']} | {shares} | {change} "
              f"| {' / '.join(str(level.samples) for level in levels)} "
              f"| {' / '.join(str(level.unanswered) for level in levels)} | {then.why} "
              f"| {whole if row['kind'] == 'all' else ' | | '} |")


def story(scene):
    """All that was counted, for a file; times are seconds after the first look."""
    begun = scene.watch.seen[0][0]
    return {
        "moments": [{**of, "at": of["at"] - begun, "begins": of["begins"] - begun} for of in scene.moments],
        "samples": [[at - begun, {" ".join(of): n for of, n in counts.items()}] for at, counts in scene.watch.seen],
        "failed": [[o.sent_at - begun, o.ended_at - begun, o.address, o.worker, o.why, scene.explains(o)]
                   for o in scene.load.outcomes if not o.ok]}
