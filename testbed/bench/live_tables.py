"""Rows of live_case.py as text and as CSV. Standard library only."""
import csv
from collections import defaultdict

SHARE, TWO, MS, WHOLE = "{:.1%}", "{:.2f}", "{:.1f}", "{:.0f}"
COLUMNS = {
    "agreement": (("phase", "phase", "{}"), ("router", "router", "{}"), ("agree", "agree", "{:.3f}"),
                  ("lowest", "lowest", "{:.3f}"), ("kept", "kept", "{:.3f}"), ("staying", "of prefixes", WHOLE),
                  ("spilled", "spilled", MS), ("slowest_ms", "slowest ms", MS)),
    "quality": (("worker", "worker", "{}"), ("in_flight", "in flight", "{}"), ("router", "router", "{}"),
                ("workers_a_prefix", "workers a prefix", TWO), ("on_main", "on main worker", SHARE), ("hits", "hits", SHARE),
                ("hits_of_one", "with one worker a prefix", SHARE), ("engine_hits", "engine's hits", SHARE),
                ("busiest", "busiest / mean", TWO), ("mean_ms", "mean ms", MS), ("p50_ms", "p50 ms", MS),
                ("p99_ms", "p99 ms", MS)),
}
COMMON = (("requests", "requests", WHOLE), ("per_s", "a second", "{:,.0f}"), ("client_us", "client us", WHOLE),
          ("failed", "failed", WHOLE), ("load_average", "load average", MS))


def cells(row, columns):
    """The row's values under these columns; empty where it has none."""
    return " | ".join("" if row.get(key) is None else form.format(row[key]) for key, _, form in columns)


def mean(values):
    """Mean of the numbers, None without any; of texts, which are all equal, the first."""
    there = [value for value in values if value is not None]
    if not there or isinstance(there[0], str):
        return there[0] if there else None
    return sum(there) / len(there)


def over_rounds(rows):
    """One row for the rounds of a phase at a router: means, failures added up."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["router"], row["phase"]].append(row)
    found = []
    for group in groups.values():
        one = {key: mean([row[key] for row in group]) for key in group[0]}
        found.append(one | {"lowest": min(row["agree"] for row in group), "failed": sum(row["failed"] for row in group)})
    return found


def print_tables(rows):
    """One table for each half; rows to compare are next to each other."""
    for half, columns in COLUMNS.items():
        of_half, columns = [row for row in rows if row["half"] == half], columns + COMMON
        if not of_half:
            continue
        if half == "agreement":
            of_half = over_rounds(of_half)
        print(f"\n{half}\n\n| " + " | ".join(name for _, name, _ in columns) + " |\n" + "|---" * len(columns) + "|")
        keys = [key for key, _, _ in columns if key in ("phase", "worker", "in_flight")]
        order = list(dict.fromkeys(tuple(row[key] for key in keys) for row in of_half))
        for row in sorted(of_half, key=lambda row: order.index(tuple(row[key] for key in keys))):
            print(f"| {cells(row, columns)} |")


def write_csv(path, rows):
    """All rows, unrounded, under the names of all their values."""
    with open(path, "w", newline="") as sink:
        table = csv.DictWriter(sink, list(dict.fromkeys(key for row in rows for key in row)))
        table.writeheader()
        table.writerows(rows)
