# shellcheck shell=bash
# Sourced by tools/check, tools/test, tools/demo and tools/package: stages with times, builds with progress.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

# Build folders of one clone share what they compile alike: ccache then sees paths relative to the clone. What a file includes it
# learns from the compiler (DEPEND), not by preprocessing each file once more.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
# What it has to overlook where headers are precompiled (cmake/CoorddPrecompile.cmake).
export CCACHE_SLOPPINESS=pch_defines,time_macros
# Names in sentences of tests stay as written.
export LC_ALL=C.UTF-8

logs=$root/build/logs
passed=0
failed=0
skipped=0
failures=()

say() { printf '%s\n' "$*"; }

# minutes_left DONE ALL SECONDS: how long what is left takes, if it goes on as in these seconds; nothing before ten of them.
minutes_left() {
  if [ "$1" -eq 0 ] || [ "$1" -eq "$2" ] || [ "$3" -lt 10 ]; then return; fi
  local seconds=$((($2 - $1) * $3 / $1))
  if [ $seconds -lt 60 ]; then echo ", less than a minute left"; else echo ", about $(((seconds + 30) / 60)) min left"; fi
}

quiet_seconds=20  # the longest that whoever looks on waits for a line

# Reads ninja's "[12/345] Building ..." and prints how far it is: one line that moves on a terminal, else a line
# every tenth, and after $quiet_seconds without one. Everything goes to the file $1 as well. (Not awk: Debian's reads ahead, and
# shows nothing for a minute.)
show_progress() {
  local moving=0 tenth=0 shown=0 line='' piece percent=0 steps='?' left start=$SECONDS said=$SECONDS status
  if [ -t 1 ]; then moving=1; fi
  while true; do
    status=0
    IFS= read -r -t 5 piece || status=$?
    line+=$piece
    if [ $moving -eq 0 ] && [ $((SECONDS - said)) -ge "$quiet_seconds" ]; then
      said=$SECONDS
      printf '      %3d %% of %s steps, %d s so far\n' "$percent" "$steps" $((SECONDS - start)) >&3
    fi
    # Time is up, and a part of a line may have come: the rest follows.
    if [ $status -gt 128 ]; then continue; fi
    if [ $status -ne 0 ] && [ -z "$line" ]; then break; fi
    printf '%s\n' "$line"
    if ! [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]]; then
      line=''
      continue
    fi
    line=''
    steps=${BASH_REMATCH[2]}
    percent=$((100 * BASH_REMATCH[1] / BASH_REMATCH[2]))
    if [ $moving -eq 1 ]; then
      left=$(minutes_left "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" $((SECONDS - start)))
      printf '\r      %3d %% of %d steps%-27s' "$percent" "${BASH_REMATCH[2]}" "$left" >&3
      shown=1
    elif [ "${BASH_REMATCH[2]}" -ge 20 ] && [ $((percent / 10)) -gt $tenth ]; then
      tenth=$((percent / 10))
      said=$SECONDS
      left=$(minutes_left "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" $((SECONDS - start)))
      printf '      %3d %% of %d steps%s\n' "$percent" "${BASH_REMATCH[2]}" "$left" >&3
    fi
  done 3>&1 >"$1"
  if [ $shown -eq 1 ]; then printf '\r%60s\r' ''; fi
}

# build FOLDER [TARGET...]: with progress; the log is $logs/FOLDER.log, whose errors are shown when it fails.
build() {
  local folder=$1 log
  shift
  log=$logs/$(basename "$folder").log
  mkdir -p "$logs"
  if ! cmake --build "$folder" ${1:+--target "$@"} 2>&1 | show_progress "$log"; then
    grep -nE -A12 'FAILED:|error:|Error ' "$log" | head -n 80
    say "      the whole log: ${log#"$root"/}"
    return 1
  fi
}

# configure PRESET [ARGUMENTS...]: quiet unless it fails.
configure() {
  local log=$logs/configure-$1.log
  mkdir -p "$logs"
  if ! cmake --preset "$@" >"$log" 2>&1; then
    tail -n 30 "$log"
    return 1
  fi
}

# stage NAME FUNCTION SENTENCE: runs it, prints the time, counts it. A function that runs ctest counts its tests itself
# and sets counted=1.
stage() {
  local name=$1 function=$2 sentence=$3 start=$SECONDS status=0
  counted=0
  say "--- $name: $sentence"
  "$function" || status=$?
  if [ $status -eq 0 ]; then
    if [ $counted -eq 0 ]; then passed=$((passed + 1)); fi
    say "    $name: ok ($((SECONDS - start)) s)"
  else
    if [ $counted -eq 0 ]; then failed=$((failed + 1)); fi
    failures+=("$name")
    say "    $name: FAILED ($((SECONDS - start)) s)"
  fi
}

# run_ctest FOLDER [ARGUMENTS...]: adds to the counts; shows what failed.
run_ctest() {
  local folder=$1 log status=0 total bad skips
  shift
  log=$logs/ctest-$(basename "$folder").log
  mkdir -p "$logs"
  ctest --test-dir "$folder" --output-on-failure -j "$(nproc)" --no-tests=error "$@" >"$log" 2>&1 || status=$?
  total=$(sed -nE 's/.*tests failed out of ([0-9]+).*/\1/p' "$log")
  bad=$(sed -nE 's/.* ([0-9]+) tests? failed out of .*/\1/p' "$log")
  skips=$(grep -cE '\*\*\*Skipped' "$log" || true)
  if [ -z "$total" ]; then
    tail -n 30 "$log"
    return 1
  fi
  passed=$((passed + total - bad - skips))
  failed=$((failed + bad))
  skipped=$((skipped + skips))
  counted=1
  say "      $((total - bad - skips)) tests passed, $bad failed, $skips skipped"
  if [ "$skips" -gt 0 ]; then grep -E '\*\*\*Skipped' "$log" | sed 's/^/      /'; fi
  if [ $status -ne 0 ]; then
    awk '/Start +[0-9]+:/ { block = "" } { block = block "\n" $0 } /\*\*\*(Failed|Timeout|Exception)/ { on = 1 }
         on { print } / Passed | Skipped / { on = 0 }' "$log" | tail -n 150
    sed -n '/The following tests FAILED/,$p' "$log"
    say "      the whole log: ${log#"$root"/}"
  fi
  return $status
}

# The C++ files of the repository.
# newest_symbol FAMILY FOLDER: the newest version of GLIBC or GLIBCXX that a program or library in the folder asks for, "GLIBC_2.34".
newest_symbol() {
  find "$2" -type f \( -perm -u+x -o -name '*.so*' \) -exec objdump -T {} + 2>/dev/null |
    grep -oE "$1_[0-9]+(\.[0-9]+)+" | sort -uV | tail -n 1
}
cpp_files() { git ls-files -co --exclude-standard -- '*.h' '*.hpp' '*.cc' '*.c'; }

# The scripts in bash.
bash_files() { git grep -lE --untracked '^#!/bin/bash|^# shellcheck shell=bash' -- tools .ci deploy tests; }

check_format() {
  local formatter
  formatter=$(command -v clang-format-14 || command -v clang-format) || {
    say "      no clang-format here: tools/install-deps"
    return 1
  }
  cpp_files | xargs -r -P "$(nproc)" -n 40 "$formatter" --dry-run -Werror 2>&1 | grep -E 'error:' |
    sed 's/ \[-Wclang-format-violations\]//' | sort -u | head -n 20 | sed 's/^/      /'
  # PIPESTATUS[1]: xargs; 123 when one of its runs failed.
  [ "${PIPESTATUS[1]}" -eq 0 ] || {
    say "      put right by: clang-format-14 -i FILE"
    return 1
  }
}

check_tidy() { tools/tidy 2>&1 | sed 's/^/      /'; }

check_shell() {
  if ! command -v shellcheck >/dev/null; then
    say "      no shellcheck here: scripts are not checked (tools/install-deps)"
    return 0
  fi
  bash_files | xargs -r shellcheck -x
}

# Files that differ from where this branch has left main, or that git does not know yet.
changed_files() {
  local main base=HEAD
  for main in main origin/main; do
    if base=$(git merge-base HEAD "$main" 2>/dev/null); then break; fi
    base=HEAD
  done
  git diff --name-only --diff-filter=d "$base"
  git ls-files -o --exclude-standard
}

# The source through which a header is looked at: its own, or one that includes it, or that of a header that does.
source_of_header() {
  local header=$1 user
  if [ -e "${header%.*}.cc" ]; then
    printf '%s\n' "${header%.*}.cc"
    return
  fi
  git grep -lF --untracked "\"$header\"" -- '*.cc' '*.h' ':!tests' ':!bench' | sort -t . -k 2 | while IFS= read -r user; do
    if [ -e "${user%.*}.cc" ]; then
      printf '%s\n' "${user%.*}.cc"
      break
    fi
  done
}

# Reads names of files; prints the sources among them that clang-tidy looks at, and those of the headers.
sources_of() {
  local file
  while IFS= read -r file; do
    case $file in
      client/examples/*) ;;
      common/*.cc | server/*.cc | worker/*.cc | relay/*.cc | client/*.cc) printf '%s\n' "$file" ;;
      common/*.h | server/*.h | worker/*.h | relay/*.h | client/*.h) source_of_header "$file" ;;
    esac
  done | sort -u
}

# check_clang_tidy FOLDER: clang-tidy over the files that it reads the names of; the build in FOLDER says how they are compiled.
# Only Debian 12's version is asked: others know other checks.
check_clang_tidy() {
  local folder=$1 log=$logs/clang-tidy.log status=0
  if ! command -v clang-tidy-14 >/dev/null; then
    say "      no clang-tidy-14 here: not checked (tools/install-deps, on Debian 12)"
    return 0
  fi
  mkdir -p "$logs"
  sources_of >"$logs/clang-tidy.files"
  say "      $(wc -l <"$logs/clang-tidy.files") files"
  xargs -r -P "$(nproc)" -n 1 clang-tidy-14 -p "$folder" --quiet <"$logs/clang-tidy.files" >"$log" 2>/dev/null || status=$?
  if [ $status -ne 0 ]; then
    grep -E '(error|warning): ' "$log" | sed -e "s#^$root/##" -e 's/^/      /' | sort -u | head -n 40
    say "      the whole log: ${log#"$root"/}"
    return 1
  fi
}

# The closing lines and the exit status of a run of stages.
summary() {
  if [ ${#failures[@]} -gt 0 ]; then say "failed: ${failures[*]}"; fi
  say "$((SECONDS / 60)) min $((SECONDS % 60)) s"
  if [ $skipped -gt 0 ]; then
    say "$passed passed, $failed failed, $skipped skipped"
  else
    say "$passed passed, $failed failed"
  fi
  [ ${#failures[@]} -eq 0 ]
}
