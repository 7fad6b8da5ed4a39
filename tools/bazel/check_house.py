#!/usr/bin/env python3
"""Checks what keeps the rooms apart (tools/bazel/rooms.bzl): run it from the root of the project.

  names      no two types of one qualified name: two would be undefined behaviour in a program that links both
  arrows     includes between rooms follow rooms.bzl, and have no cycle
  depth      no chain of our own includes is longer than DEPTH_MAX
  sources    no class has its methods in more than one source
  words      none of WORDS, which have to be read twice, in any text
  loops      none goes over what a temporary points to, which is gone when the loop begins
"""

import collections
import os
import re
import subprocess
import sys

DEPTH_MAX = 8
# Persons and phrases where a noun of the field belongs.
WORDS = ("who" + "ever", "some" + "body", "as a " + "rule", "in good " + "order")
PRODUCT = ("common/", "kernels/", "server/", "worker/", "tools/")


def files():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.h", "*.cc", "*.cu"],
                            check=True, capture_output=True, text=True).stdout.split()
    return [file for file in listed if os.path.exists(file)]


def read(file):
    with open(file, encoding="utf-8") as source:
        return source.read()


NAMESPACE = re.compile(r"^(?:inline )?namespace\s*([\w:]*)\s*\{$")
END = re.compile(r"^\}\s*// namespace")
TYPE = re.compile(r"^(?:template\s*<[^;{]*>\s*)?(?:class|struct|union|enum class|enum)\s+(?:alignas\([^)]*\)\s+)?(\w+)"
                  r"(?:\s+final)?(?:\s*:(?!:)[^;{]*)?\s*\{")


def types(file):
    """The qualified names of the types that `file` defines at namespace scope, but for unnamed namespaces."""
    scope = []
    lines = read(file).split("\n")
    for at, line in enumerate(lines):
        begin = NAMESPACE.match(line)
        if begin:
            scope.append(begin.group(1))
        elif END.match(line):
            scope.pop()
        else:
            found = TYPE.match(line + " " + lines[at + 1] if at + 1 < len(lines) and not line.endswith((";", "{"))
                               else line)
            template = lines[at - 1].startswith("template") if at else False
            # A template and its specializations are one type; of macros' instruction sets (HWY_NAMESPACE) each compiles its own.
            if found and not template and "" not in scope and "HWY_NAMESPACE" not in scope:
                yield "::".join(scope + [found.group(1)])


def check_names(sources):
    defined = collections.defaultdict(list)
    for file in sources:
        # Fuzz targets and emulated headers are programs of their own.
        if not file.startswith(("tests/fuzz/", "tests/kernels/emulated/")):
            for name in types(file):
                defined[name].append(file)
    for name, where in sorted(defined.items()):
        if len(where) > 1:
            yield "%s is defined in %s" % (name, " and ".join(where))


def rooms():
    scope = {}
    text = read("tools/bazel/rooms.bzl")
    exec(text[:text.index("def ")], scope)  # Its first part is the table.
    return scope["ROOMS"]


def below(room, table):
    reached = [room]
    for each in reached:
        reached += [used for used in table[each] if used not in reached]
    return set(reached)


def check_arrows(sources):
    table = rooms()
    edges = collections.defaultdict(dict)
    for file in sources:
        room = os.path.dirname(file)
        if room not in table:
            continue
        for include in re.findall(r'^#include "([^"]+)"', read(file), re.M):
            used = os.path.dirname(include)
            if used in table and used != room:
                edges[room].setdefault(used, "%s includes %s" % (file, include))
                if used.split("/")[0] == room.split("/")[0]:
                    if used not in below(room, table):
                        yield "%s: rooms.bzl has no arrow from %s to %s" % (edges[room][used], room, used)
                elif used.split("/")[0] != "common":
                    yield "%s: %s does not use %s" % (edges[room][used], room.split("/")[0], used.split("/")[0])
    for room in table:
        reached = [room]
        for each in reached:
            if room in edges[each]:
                yield "a cycle: %s" % edges[each][room]
                break
            reached += [used for used in edges[each] if used not in reached]


def check_depth(sources):
    known = set(sources)
    includes = {file: [header for header in re.findall(r'^#include "([^"]+)"', read(file), re.M) if header in known]
                for file in sources}
    chains = {}

    def chain(file):
        if file not in chains:
            chains[file] = []  # Ends a cycle.
            longest = max((chain(header) for header in includes[file]), key=len, default=[])
            chains[file] = [file] + longest
        return chains[file]

    for file in sources:
        if file.startswith(PRODUCT) and file.endswith(".h") and len(chain(file)) > DEPTH_MAX:
            yield "%d deep: %s" % (len(chain(file)), " > ".join(chain(file)))


METHOD = re.compile(r"^(?:[A-Za-z][^\n=;(){}]*?[\s&*>])?([A-Z]\w+)(?:<[^>\n]*>)?::(?:~?\w+|operator[^(\n]+)\(", re.M)


def check_sources(sources):
    where = collections.defaultdict(set)
    for file in sources:
        if file.startswith(("common/", "server/", "worker/", "tools/")) and file.endswith(".cc"):
            text = read(file)
            for name in set(METHOD.findall(text)):
                # A class of this source's own unnamed namespace is another one.
                if not re.search(r"^\s*(?:class|struct) %s\b[^;]*\{" % name, text, re.M):
                    where[(file.split("/")[0], name)].add(file)
    for (_, name), found in sorted(where.items()):
        if len(found) > 1:
            yield "%s has methods in %s" % (name, " and ".join(sorted(found)))


def check_words():
    found = subprocess.run(["git", "grep", "-nIiE", "--untracked", "|".join(WORDS)], check=False, capture_output=True, text=True)
    for line in found.stdout.splitlines():
        yield line[:160]


LOOP = re.compile(r"\bfor \([^;:]*(?:::[^;:]*)*:\s*\*(?!(?:[\w:]|->|\.)*mutable_)(?:[\w:]|->|\.|\(\))*\(\)\)")


def check_loops(sources):
    for file in sources:
        for number, line in enumerate(read(file).split("\n"), 1):
            if LOOP.search(line):
                yield "%s:%d: name what is pointed to before the loop: %s" % (file, number, line.strip())


def main():
    sources = files()
    failed = 0
    for name, check in (("names", check_names), ("arrows", check_arrows), ("depth", check_depth),
                        ("sources", check_sources), ("words", lambda _: check_words()),
                        ("loops", check_loops)):
        found = list(check(sources))
        print("%-8s %s" % (name, "ok" if not found else "%d found" % len(found)))
        for line in found:
            print("  " + line)
        failed += len(found)
    sys.exit(1 if failed else 0)


main()
