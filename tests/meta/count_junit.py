#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print "passed failed skipped" of a file that ctest --output-junit wrote; the names of skipped tests go to standard error.

A test that asked for a skip (exit status 77) is skipped; one that ctest could not run, because its program is not there, failed.
"""

import sys
import xml.etree.ElementTree as ElementTree


def outcome(case):
    """passed, failed or skipped, and the reason of a skip."""
    status, mark = case.get("status"), case.find("skipped")
    if status == "run":
        return "passed", ""
    if status == "disabled" or (mark is not None and mark.get("message", "").startswith("SKIP_")):
        said = [line.strip() for line in (case.findtext("system-out") or "").splitlines() if line.strip()]
        return "skipped", said[-1] if said else status
    return "failed", ""


def main():
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
        verdict, reason = outcome(case)
        counts[verdict] += 1
        if verdict == "skipped":
            print(f"skipped: {case.get('name')}: {reason}", file=sys.stderr)
    print(counts["passed"], counts["failed"], counts["skipped"])


if __name__ == "__main__":
    main()
