#!/usr/bin/env python3
"""Checks what the documents and commands refer to: run it from the root of the project.

  walks      `file: Class::Method` in a document: the file defines it
  paths      `folder/file.ext` in a document, and in a command, exists
  links      a document's relative links lead to a file, and to a heading of it
  labels     //package:target in a document or a command is declared in that package's BUILD
  programs   a command line in a document names no bare `ps` or `worker`: what is installed is lodestone-ps and lodestone-worker

--self-test checks the checks, on made-up texts.
"""

import os
import re
import subprocess
import sys

FOLDERS = ("common", "configs", "kernels", "proto", "server", "tests", "tools", "worker")
# Explain names and paths of other times; a reader of a changelog wants those.
HISTORY = {"CHANGELOG.md"}

# "`server/shard/shard.cc: Shard::Push`", with a line's end anywhere between the two.
WALK = re.compile(r"`((?:%s)/[\w./-]+\.(?:cc|h|cu)):\s+([\w:]+)`" % "|".join(FOLDERS))
PATH = re.compile(r"`((?:%s)/[\w./-]*\.(?:cc|h|cu|proto|md|ya?ml|py|json|svg|bzl))`" % "|".join(FOLDERS))
# The same in a command, behind $root/ or nothing; what Bazel builds has no extension.
FILE = re.compile(r"(?<![\w/.$}-])(?:\$\{?root\}?/)?((?:%s)/[\w./-]*\.(?:cc|h|cu|proto|ya?ml|py|json|bzl|sh))\b" % "|".join(FOLDERS))
LINK = re.compile(r"\]\(([^)\s]+)\)")
LABEL = re.compile(r"(?<![\w:/])//((?:%s)(?:/[\w.-]+)*)(?::([\w./-]+))?" % "|".join(FOLDERS))
BARE = re.compile(r"^(?:\w+\$ )?\s*(ps|worker)\s+--")


def defines(text, name):
    """Whether C++ source `text` defines `name`: a type or function, or Class::Method in or out of its class."""
    text = re.sub(r"//[^\n]*", "", text)
    if "::" in name and re.search(r"\b%s\s*(?:\(|\{|final)" % re.escape(name), text):
        return True
    *scopes, last = name.split("::")
    if not scopes:
        return bool(re.search(r"\b(?:class|struct|enum class)\s+(?:\w+\s+)?%s\b|\b%s\s*\(|\b%s::" % (last, last, last), text))
    # Within the class: the class's name, and after it a declaration of the method.
    for found in re.finditer(r"\b(?:class|struct)\s+%s\b[^;{]*\{" % re.escape(scopes[-1]), text):
        if re.search(r"\b%s\s*\(" % re.escape(last), text[found.end():]):
            return True
    return False


def headings(text):
    """The anchors of a document's headings."""
    anchors = set()
    for line in re.sub(r"(?ms)^```.*?^```", "", text).split("\n"):
        found = re.match(r"#{1,6}\s+(.*)", line)
        if found:
            words = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found.group(1)).lower())
            anchors.add(words.strip().replace(" ", "-"))
    return anchors


def declares(build, target):
    """Whether the BUILD file's text declares `target`, or exports that file."""
    return bool(re.search(r"""name\s*=\s*["']%s["']""" % re.escape(target), build)) or \
        any('"%s"' % target in found for found in re.findall(r"exports_files\((.*?)\)", build, re.S))


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def walks(document, text, read_file):
    for file, name in WALK.findall(text):
        source = read_file(file)
        if source is None:
            yield "%s: `%s: %s`: there is no such file" % (document, file, name)
        elif not defines(source, name):
            yield "%s: `%s: %s`: the file does not define it" % (document, file, name)


def paths(document, text, exists):
    for path in PATH.findall(text):
        if not exists(path):
            yield "%s: `%s` does not exist" % (document, path)


def files(command, text, exists):
    for path in FILE.findall(text):
        if not exists(path):
            yield "%s: %s does not exist" % (command, path)


def links(document, text, read_file, exists):
    for target in LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(document), path)) if path else document
        if not exists(path):
            yield "%s: link to %s: %s does not exist" % (document, target, path)
        elif anchor and anchor not in headings(read_file(path) or ""):
            yield "%s: link to %s: no such heading" % (document, target)


def labels(document, text, read_file, exists):
    for package, target in LABEL.findall(text):
        if package.endswith("..."):
            folder = package[:-len("...")].rstrip("/")
            if not exists(folder):
                yield "%s: //%s: there is no folder %s" % (document, package, folder)
            continue
        build = read_file(package + "/BUILD")
        if target in ("all", "*") and build is not None:
            continue
        if build is None or not declares(build, target or os.path.basename(package)):
            yield "%s: //%s%s is no target" % (document, package, ":" + target if target else "")


def programs(document, text):
    for line in text.split("\n"):
        if line.startswith("    ") and BARE.match(line.strip()):
            yield "%s: %s: write lodestone-%s" % (document, line.strip(), BARE.match(line.strip()).group(1))


# A test suite that a command names in a filter of Google Test.
SUITE = re.compile(r"[*'=:](\w+(?:Test|Suite)?)\.[*\w]")
FILTER = re.compile(r"^run_tests .*$|--gtest_filter=\S+", re.M)


def suites(command, text, tests):
    """Suites in filters that no test of `tests` has: the filter would select nothing, and pass."""
    for used in FILTER.findall(text):
        for suite in SUITE.findall(used):
            if not re.search(r"\b%s\b" % suite, tests):
                yield "%s: no test suite is called %s" % (command, suite)


def check():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], check=True,
                            capture_output=True, text=True).stdout.split("\n")
    documents = [file for file in listed if file.endswith(".md") and file not in HISTORY and os.path.isfile(file)]
    commands = [file for file in listed if re.fullmatch(r"tools/\w+|tools/bazel/release\.sh|tools/bench/run|\.ci/run", file)
                and os.path.isfile(file)]
    commands.append("configs/container/Containerfile")

    def read_file(path):
        return read(path) if os.path.isfile(path) else None

    problems = []
    counted = 0
    for document in documents:
        text = read(document)
        counted += len(WALK.findall(text))
        problems += walks(document, text, read_file)
        problems += paths(document, text, os.path.exists)
        problems += links(document, text, read_file, os.path.exists)
        problems += labels(document, text, read_file, os.path.exists)
        problems += programs(document, text)
    tests = "".join(read(file) for file in listed if re.fullmatch(r"tests/.*_test\.cc", file) and os.path.isfile(file))
    for command in commands:
        problems += suites(command, read(command), tests)
        problems += labels(command, read(command), read_file, os.path.exists)
        problems += files(command, read(command), os.path.exists)
    for problem in problems:
        print(problem, file=sys.stderr)
    print("%d documents with %d walked methods, %d commands: %s" %
          (len(documents), counted, len(commands), "%d wrong references" % len(problems) if problems else "all found"))
    return 1 if problems else 0


def self_test():
    source = "// Not Wall::Fall().\nclass Door {\n  void Open();\n};\nvoid House::Enter(int x) {}\nstruct Window {};\nint Count(int x);\n"
    assert defines(source, "Door::Open") and defines(source, "House::Enter") and defines(source, "Window")
    assert defines(source, "Count")
    assert not defines(source, "Door::Close") and not defines(source, "House::Leave") and not defines(source, "Wall") and not defines(source, "Wall::Fall")
    tree = {"server/a.cc": source, "server/BUILD": 'cc_binary(name = "ps")', "b/c.md": "# One, two\n## `Three` four\n"}
    exists = lambda path: path in tree or any(file.startswith(path + "/") for file in tree)
    assert not list(walks("d", "`server/a.cc: Door::Open` `server/a.cc:\n   House::Enter`", tree.get))
    assert len(list(walks("d", "`server/a.cc: Door::Shut` `server/b.cc: Door`", tree.get))) == 2
    assert len(list(paths("d", "`server/a.cc` `server/b.cc` `other/b.cc`", exists))) == 1
    assert not list(files("c", 'cat "$root/server/a.cc" server/a.cc $out/server/b.cc', exists))
    assert len(list(files("c", 'cat "$root/server/b.cc" server/b.cc', exists))) == 2
    assert not list(links("b/d.md", "[x](c.md) [y](c.md#one-two) [z](c.md#three-four) [w](https://x/y)", tree.get, exists))
    assert len(list(links("b/d.md", "[x](e.md) [y](c.md#five)", tree.get, exists))) == 2
    assert not list(labels("d", "//server:ps //server/... https://server/x", tree.get, exists))
    assert len(list(labels("d", "//server:worker //tests/server/...", tree.get, exists))) == 2
    assert len(list(programs("d", "    ps --config x\n    ps0$ worker --config x\n    lodestone-ps --config x\nps --x"))) == 2
    assert not list(suites("c", "run_tests a b '*DoorTest.*cuda*:*WallTest.*' cuda\nx --gtest_filter=Door.Opens", "DoorTest WallTest Door"))
    assert list(suites("c", "run_tests a b '*DoorTest.*cuda*:*WallTest.*' cuda", "DoorTest")) == ["c: no test suite is called WallTest"]
    print("the checks find what they should")
    return 0


if __name__ == "__main__":
    sys.exit(self_test() if sys.argv[1:] == ["--self-test"] else check())
