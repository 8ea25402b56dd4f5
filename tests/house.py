#!/usr/bin/env python3
"""Figures of the sources themselves, of this tree or of another one: size, circles, doors per message kind.

    tests/house.py [TREE ...] [--list]

Prints one table with a column for each tree (a work tree of any release; this one if none is named), as it stands in
docs/measurements.md, "The house". `--list` names what is over size and every circle instead.

Lines are all lines of `.rs` files. What is a test: files below a folder `tests` or `benches`, files `tests.rs` and
`*_tests.rs`, files and items behind `#[cfg(test)]`, and the package of whole-system tests. The rest is the source.

A circle: files and folders of one folder that import each other (`crate::`, `super::`, `self::`, in a `use` or in a
path). A folder's `mod.rs` and the crate's root are not looked at as importers: they only put their pieces together.
It is a circle of folders if a folder is in it, otherwise one of files.

Doors of a message kind: the file of its row (or of the enum), and each other one outside the tests that names it as
`Message::Kind`. Places that a new kind needs and that do not name it so are not counted: this is a lower bound.
"""
import argparse
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

FILE_LINES, FUNCTION_LINES = 350, 70
SKIPPED = {"target", ".git", "corpus"}
# Comments, strings and characters, so that braces and paths are looked for in code alone.
NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hash>\#*)".*?"(?P=hash)|b?"(?:\\.|[^"\\])*"|b?'(?:\\[^\n']+|\\'|[^'\\\n])'""",
    re.DOTALL | re.VERBOSE,
)
TEST_ITEM = re.compile(r"#\[cfg\((?:test|all\(test\b[^\]]*)\)\]\s*(?:#\[[^\]]*\]\s*)*")
TEST_FILE = re.compile(r"(pub(\([a-z]+\))?\s+)?mod\s+(\w+);")
FUNCTION = re.compile(r"^[ \t]*(?:pub(?:\([^)]*\))?\s+)?(?:(?:const|async|unsafe)\s+)*fn\s+(\w+)", re.MULTILINE)
USE = re.compile(r"\buse\s+((?:crate|super|self)\b[^;]*);")
PATH = re.compile(r"\b((?:crate|super)(?:::\w+)+)")


def code_of(text):
    """The text with everything that is not code blanked out; lines stay where they are."""
    return NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def end_of_item(code, at):
    """Where the item that begins at `at` ends: behind its block, or behind its semicolon."""
    depth = 0
    for found in re.compile(r"[{};()\[\]]").finditer(code, at):
        sign = found.group()
        if sign in "{([":
            depth += 1
        elif sign in "})]":
            depth -= 1
            if depth == 0 and sign == "}":
                return found.end()
        elif depth == 0:
            return found.end()
    return len(code)


class File:
    """One source file: its code without test items, and how many lines those are."""

    def __init__(self, path, is_test):
        self.path, self.is_test = path, is_test
        code = code_of(path.read_text())
        self.lines = code.count("\n")
        self.test_lines = 0
        self.test_modules = []
        while found := TEST_ITEM.search(code):
            end = end_of_item(code, found.end())
            module = TEST_FILE.match(code, found.end())
            if module:
                self.test_modules.append(module.group(3))
            item = code[found.start():end]
            self.test_lines += item.count("\n") + 1
            code = code[:found.start()] + re.sub(r"[^\n]", " ", item) + code[end:]
        self.code = code

    def source_lines(self):
        return 0 if self.is_test else self.lines - self.test_lines

    def functions(self):
        """Name and lines of each function of the source."""
        for found in [] if self.is_test else FUNCTION.finditer(self.code):
            end = end_of_item(self.code, found.start(1))
            yield found.group(1), self.code.count("\n", found.start(1), end) + 1


def imported(text):
    """The paths of a `use` tree."""
    text = re.sub(r"\s+", "", re.sub(r"\s+as\s+\w+", "", text))
    inner = re.match(r"([^{]*)\{(.*)\}$", text)
    if not inner:
        yield text
        return
    depth, part = 0, ""
    for sign in inner.group(2) + ",":
        if sign == "," and depth == 0:
            if part:
                yield from (inner.group(1) + path for path in imported(part))
            part = ""
            continue
        depth += (sign == "{") - (sign == "}")
        part += sign


class Package:
    """A crate of the tree: its files, and the graph of its modules."""

    def __init__(self, tree, manifest):
        self.folder = manifest.parent
        name = re.search(r'^name\s*=\s*"(.*?)"', manifest.read_text(), re.MULTILINE).group(1)
        self.name = name.removeprefix("grapevine-")
        self.is_tests = self.folder.relative_to(tree).parts[:1] == ("tests",)
        self.files = {}

    def add(self, path):
        below = path.relative_to(self.folder)
        in_tests = {"tests", "benches"} & set(below.parts[:-1])
        is_test = self.is_tests or bool(in_tests) or path.stem == "tests" or path.stem.endswith("_tests")
        self.files[path] = File(path, is_test)

    def mark_tests(self):
        """Modules behind `#[cfg(test)]` in a file of another name, with all that is below them."""
        for file in list(self.files.values()):
            base = file.path.parent
            if file.path.stem not in ("mod", "lib", "main"):
                base = base / file.path.stem
            for module in file.test_modules:
                for path, other in self.files.items():
                    if path == base / f"{module}.rs" or (base / module) in path.parents:
                        other.is_test = True

    def modules(self):
        """Module path → file, of the source below `src`."""
        found = {}
        for path, file in self.files.items():
            if file.is_test or self.folder / "src" not in path.parents:
                continue
            parts = path.relative_to(self.folder / "src").with_suffix("").parts
            parts = parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts
            if parts or path.stem == "lib":
                found[parts] = file
        return found

    def imports(self, modules):
        """Pairs of module paths: who imports, what it imports."""
        for own, file in modules.items():
            paths = [path for use in USE.finditer(file.code) for path in imported(use.group(1))]
            paths += PATH.findall(USE.sub("", file.code))
            for path in paths:
                parts = path.split("::")
                at = () if parts[0] == "crate" else own
                while parts and parts[0] in ("crate", "self", "super"):
                    at = at[:-1] if parts[0] == "super" else at
                    parts = parts[1:]
                target = at + tuple(parts)
                while target and target not in modules:
                    target = target[:-1]
                if target and target != own:
                    yield own, target

    def circles(self):
        """Of each folder the sets of its files and folders that import each other, and whether a folder is among them."""
        modules = self.modules()
        is_folder = {parts[:-1] for parts in modules if parts}
        graphs = defaultdict(lambda: defaultdict(set))
        for own, target in self.imports(modules):
            common = 0
            while common < min(len(own), len(target)) and own[common] == target[common]:
                common += 1
            if common < len(own) and common < len(target):
                graphs[own[:common]][own[:common + 1]].add(target[:common + 1])
        for graph in graphs.values():
            for circle in strong(graph):
                yield sorted("/".join(parts) for parts in circle), any(parts in is_folder for parts in circle)


def strong(graph):
    """Strongly connected parts of more than one node."""
    def reach(node):
        seen, left = set(), [node]
        while left:
            for target in graph.get(left.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    left.append(target)
        return seen

    reached = {node: reach(node) for node in list(graph)}
    done = set()
    for node, targets in reached.items():
        if node in targets and node not in done:
            circle = {other for other in targets if node in reached.get(other, ())}
            done |= circle
            if len(circle) > 1:
                yield circle


def doors(packages):
    """Of each kind of message how many files name it."""
    gossip = next((package for package in packages if package.name == "gossip"), None)
    if gossip is None:
        return {}
    sources = [file for file in gossip.files.values() if not file.is_test]
    home, kinds = None, []
    for file in sources:
        if rows := re.findall(r"^    (\w+)(?:\(\w+: [^=\n]*\))? = \[[\d, ]+\],", file.code, re.MULTILINE):
            home, kinds = file, rows
            break
        if enum := re.search(r"pub(?:\(crate\))? enum Message \{", file.code):
            body = file.code[enum.end():end_of_item(file.code, enum.start())]
            home, kinds = file, re.findall(r"^    (\w+)[,({ ]", body, re.MULTILINE)
    found = {}
    for kind in kinds:
        names = re.compile(rf"\bMessage::{kind}\b")
        found[kind] = sum(1 for file in sources if file is home or names.search(file.code))
    return found


def read(tree):
    """The packages of a tree."""
    paths = [path for path in tree.rglob("*") if not SKIPPED & set(path.relative_to(tree).parts)]
    manifests = [path for path in paths if path.name == "Cargo.toml" and "\n[package]" in "\n" + path.read_text()]
    packages = {manifest.parent: Package(tree, manifest) for manifest in manifests}
    for path in sorted(paths):
        if path.suffix == ".rs" and path.is_file():
            home = next((folder for folder in path.parents if folder in packages), None)
            if home is not None:
                packages[home].add(path)
    for package in packages.values():
        package.mark_tests()
    return sorted(packages.values(), key=lambda package: package.name)


def figures(tree, listed):
    """Label → figure of one tree."""
    packages, rows = read(tree), {}
    sources = [file for package in packages for file in package.files.values()]
    rows["lines of Rust, tests included"] = sum(file.lines for file in sources)
    rows["source without tests"] = sum(file.source_lines() for file in sources)
    for package in packages:
        source = sum(file.source_lines() for file in package.files.values())
        if source:
            rows[f"source of `{package.name}`"] = source
    sizes = {file.path: file.source_lines() for file in sources if file.source_lines()}
    functions = [(lines, name, file.path) for file in sources for name, lines in file.functions()]
    long_files = {path: lines for path, lines in sizes.items() if lines > FILE_LINES}
    long_functions = [entry for entry in functions if entry[0] > FUNCTION_LINES]
    circles = [(package.name, *circle) for package in packages for circle in package.circles()]
    kinds = doors(packages)
    quantiles = statistics.quantiles(sizes.values(), n=10)
    rows["lines of a file: median, p90, greatest"] = (
        f"{statistics.median(sizes.values()):.0f}, {quantiles[8]:.0f}, {max(sizes.values())}"
    )
    rows[f"files over {FILE_LINES} lines"] = len(long_files)
    rows[f"functions over {FUNCTION_LINES} lines"] = (
        f"{len(long_functions)} of {len(functions)} ({100 * len(long_functions) / len(functions):.2f} %)"
    )
    rows["circles with a folder in them (greatest)"] = counted([circle for _, circle, is_wide in circles if is_wide])
    rows["circles of files of one folder (greatest)"] = counted([circle for _, circle, is_wide in circles if not is_wide])
    if kinds:
        rows["message kinds; files that name one: median, most"] = (
            f"{len(kinds)}; {statistics.median(kinds.values()):.0f}, {max(kinds.values())}"
        )
    if listed:
        for path, lines in sorted(long_files.items(), key=lambda entry: -entry[1]):
            print(f"file {lines:5} {path.relative_to(tree)}")
        for lines, name, path in sorted(long_functions, reverse=True):
            print(f"function {lines:4} {name} {path.relative_to(tree)}")
        for name, circle, is_wide in circles:
            print(f"circle of {'folders' if is_wide else 'files'} in {name}: {' '.join(circle)}")
    return rows


def counted(circles):
    return f"{len(circles)} ({max(map(len, circles))})" if circles else "0"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE")
    parser.add_argument("--list", action="store_true", help="name what is over size, and the circles")
    parser.add_argument("--check", action="store_true", help="name the circles only, and fail where there is one")
    options = parser.parse_args()
    trees = options.trees or [Path(__file__).resolve().parent.parent]
    if missing := [tree for tree in trees if not (tree / "Cargo.toml").is_file()]:
        sys.exit(f"no Cargo.toml in {missing[0]}")
    if options.check:
        found = [circle for tree in trees for package in read(tree.resolve()) for circle in package.circles()]
        for circle, _ in found:
            print(f"circle: {' '.join(circle)}", file=sys.stderr)
        sys.exit(bool(found))
    columns = [figures(tree.resolve(), options.list) for tree in trees]
    if options.list:
        return
    labels = list(dict.fromkeys(label for column in reversed(columns) for label in column))
    print("| |" + "".join(f" {tree.resolve().name} |" for tree in trees))
    print("|---|" + "---|" * len(trees))
    for label in labels:
        print(f"| {label} |" + "".join(f" {column.get(label, '–')} |" for column in columns))


if __name__ == "__main__":
    main()
