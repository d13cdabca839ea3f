#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print "passed failed skipped" of a file that ctest --output-junit wrote; the names of skipped tests go to standard error."""

import sys
import xml.etree.ElementTree as ElementTree

counts = {"run": 0, "fail": 0, "skipped": 0}
for case in ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
    status = case.get("status") if case.get("status") in ("run", "fail") else "skipped"
    counts[status] += 1
    if status == "skipped":
        said = [line for line in (case.findtext("system-out") or "").splitlines() if line.strip()]
        print(f"skipped: {case.get('name')}: {said[-1].strip() if said else case.get('status')}", file=sys.stderr)
print(counts["run"], counts["fail"], counts["skipped"])
