#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Breaks the code on purpose, one patch at a time, and requires that a test goes red: tests/mutations/run.sh [--all | NAME...] [-j N]
# Without names it runs the subset of quick.txt. What a patch must look like is in mutate.py.
exec python3 "$(dirname "$0")/mutate.py" "$@"
