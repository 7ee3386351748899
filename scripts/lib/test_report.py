#!/usr/bin/env python3
"""Reads the output of `cargo test ... -- --show-output` on standard input, passes on what a person wants to see, and
counts.

usage: test_report.py COUNTS < output

What passing tests print is left out, except lines that begin with `skipped:`: by such a line a test says that it had
nothing to work on, and it counts as skipped though cargo counts it as passed. Ignored tests count as skipped too.
COUNTS gets JSON: {"passed", "failed", "skipped": [[suite, test, reason], ...], "suites": [[name, passed, failed, seconds], ...]}.
"""
import json
import re
import sys

RUNNING = re.compile(r"^\s+Running (?:unittests )?(\S+) \((?:.*/)?([^/)]+)-[0-9a-f]+\)$")
DOC_TESTS = re.compile(r"^\s+Doc-tests (\S+)$")
RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;.*finished in ([0-9.]+)s$")
IGNORED = re.compile(r"^test (.+?) \.\.\. ignored(?:, (.*))?$")
OUTPUT_OF = re.compile(r"^---- (.+) stdout ----$")


def main():
    counts = {"passed": 0, "failed": 0, "skipped": [], "suites": []}
    suite = "?"
    test = "?"
    skipped_here = {}
    quiet = False  # inside the output of passing tests
    for line in sys.stdin:
        text = line.rstrip("\n")
        if found := RUNNING.match(text):
            suite = f"{found[2]} {found[1]}"
        elif found := DOC_TESTS.match(text):
            suite = f"{found[1]} doc-tests"
        elif text == "successes:":
            quiet = True
        elif text == "failures:":
            quiet = False
        elif found := OUTPUT_OF.match(text):
            test = found[1]
        elif found := IGNORED.match(text):
            counts["skipped"].append([suite, found[1], found[2] or "no reason given"])
        elif quiet and text.startswith("skipped:"):
            # The first reason of a test counts; a test may say it for each of its inputs.
            skipped_here.setdefault(test, text[len("skipped:"):].strip())
        elif found := RESULT.match(text):
            quiet = False
            passed, failed = int(found[1]), int(found[2])
            counts["passed"] += passed - len(skipped_here)
            counts["failed"] += failed
            counts["skipped"] += [[suite, name, reason] for name, reason in skipped_here.items()]
            counts["suites"].append([suite, passed - len(skipped_here), failed, float(found[4])])
            skipped_here = {}
        if not quiet and not (text.startswith("test ") and text.endswith("... ok")):
            print(text, flush=True)
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(counts, out)


main()
