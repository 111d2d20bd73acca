#!/bin/bash
# Usage: exports_test.sh LIBRARY HEADER... The library exports the functions of the headers, and nothing else.
set -eu
exported=$(nm -D --defined-only "$1" | awk '{ print $3 }' | sort -u)
declared=$(grep -ohE '\bcoordd_[a-z_]+\(' "${@:2}" | tr -d '(' | sort -u)
foreign=$(grep -v '^coordd_' <<<"$exported" || true)
if [ -n "$foreign" ]; then
  echo "exports_test: $1 exports what is not coordd_*: $foreign"
  exit 1
fi
difference=$(diff <(echo "$declared") <(echo "$exported") || true)
if [ -n "$difference" ]; then
  echo "exports_test: what ${*:2} declare (<) and $1 exports (>) differ:"
  echo "$difference"
  exit 1
fi
echo "exports_test: $(wc -l <<<"$exported") functions, as declared"
