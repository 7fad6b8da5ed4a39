# What tools/bundle and tools/deb share; they source it. REQUIRES: $root, the tree, and $0, the command.
# Leaves: $version; $commit ("b56af68c172c, clean", or empty); $epoch, the time of all that is handed out, in seconds
# since 1970; $work, a folder that goes when the command ends.
export LC_ALL=C TZ=UTC

fail() {
  echo "tools/$(basename "$0"): $*" >&2
  exit 1
}
wrong() {
  echo "tools/$(basename "$0"): $*" >&2
  echo "Try tools/$(basename "$0") --help." >&2
  exit 2
}

# parse_arguments LINES ARGUMENT…: sets $out and $binaries; --help prints the first LINES lines of the command's comment.
parse_arguments() {
  local lines=$1
  shift
  out=. binaries=''
  while [ $# -gt 0 ]; do
    case "$1" in
      -h | --help) sed -n "2,$((lines + 1))s/^# \{0,1\}//p" "$0"; exit 0 ;;
      --out | --binaries)
        [ $# -ge 2 ] && [ -n "$2" ] || wrong "$1 needs a value"
        if [ "$1" = --out ]; then out=$2; else binaries=$2; fi
        shift
        ;;
      *) wrong "there is no '$1'" ;;
    esac
    shift
  done
  mkdir -p "$out" || fail "$out cannot be made"
  out=$(cd "$out" && pwd)
}

# need PROGRAM PACKAGE
need() { command -v "$1" >/dev/null || fail "$1 is not here; on Debian: apt-get install $2"; }

# take_programs DIR: puts lodestone-ps, lodestone-worker and psctl there, stripped of debug information.
take_programs() {
  local bazel bin ps worker psctl
  need strip binutils
  if [ -n "$binaries" ]; then
    ps=$binaries/lodestone-ps worker=$binaries/lodestone-worker psctl=$binaries/psctl
  else
    bazel=$root/tools/bazel/bazel
    [ -n "$commit" ] || echo "tools/$(basename "$0"): --version will not name the commit: this is no git repository, or not this user's" >&2
    "$bazel" build --config=release --show_progress --show_progress_rate_limit=15 \
      //server:ps //worker:worker //tools/psctl:psctl || fail "they do not build"
    bin=$("$bazel" info --config=release bazel-bin 2>/dev/null)
    ps=$bin/server/ps worker=$bin/worker/worker psctl=$bin/tools/psctl/psctl
  fi
  mkdir -p "$1"
  take_program "$ps" "$1/lodestone-ps"
  take_program "$worker" "$1/lodestone-worker"
  take_program "$psctl" "$1/psctl"
}

take_program() { # FROM TO
  [ -f "$1" ] || fail "$1 is not there"
  install -m 755 "$1" "$2"
  strip "$2"
}

# cuda_notice WORKER: what NVIDIA's licence wants to be told of the code of its in that program; nothing if there is none.
cuda_notice() {
  grep -qa cudart "$1" || return 0
  echo "The worker holds NVIDIA's CUDA runtime (cudart_static), which may be distributed within programs by attachment A of the"
  echo "End User License Agreement of NVIDIA's CUDA Toolkit (https://docs.nvidia.com/cuda/eula). What is built with"
  echo "--repo_env=LODESTONE_CUDA=no has nothing of it."
}

# take_configs DIR [FIND-CONDITION…]: copies those files of configs/ that belong to the tree.
take_configs() {
  local to=$1 file
  shift
  (cd "$root/configs" && find -L . -type f "$@" ! -name BUILD -printf '%P\n') | sort | while read -r file; do
    # Where git knows the tree, what it does not know is somebody's own.
    if git -C "$root/configs" ls-files --error-unmatch BUILD >/dev/null 2>&1; then
      git -C "$root/configs" ls-files --error-unmatch "$file" >/dev/null 2>&1 || continue
    fi
    install -D -m 644 "$root/configs/$file" "$to/$file"
  done
}

version=$(sed -n 's/.*kVersion\[\] = "\(.*\)";/\1/p' "$root/common/base/version.h")
commit=$("$root/tools/bazel/status" | sed -n 's/^STABLE_LODESTONE_COMMIT //p')
epoch=${SOURCE_DATE_EPOCH:-$("$root/tools/bazel/status" | sed -n 's/^LODESTONE_TIME //p')}
export SOURCE_DATE_EPOCH=$epoch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
