# What tools/bundle, tools/deb and tools/wheel share; they source it. REQUIRES: $root, the tree, and $0, the command.
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

# libraries_of FILE…: a line "NAME PATH" for each library that is to be carried.
libraries_of() {
  ldd "$@" | sed -n 's/^[[:space:]]*\([^ ]*\) => \(.*[^ ]\)  *(0x[0-9a-f]*)$/\1 \2/p; s/^[[:space:]]*\([^ ]*\) => not found$/\1 not found/p' | sort -u |
    grep -Ev '^(ld-linux.*|lib(c|m|pthread|dl|rt|resolv|mvec|util|anl|nsl|stdc\+\+|gcc_s))\.so\.[0-9]+ ' || true
}

# search_path_of FILE: the lines that say where it looks for its libraries; none if only where the machine does.
search_path_of() { readelf -d "$1" | grep -E '\((RPATH|RUNPATH)\)' || true; }

# carry_libraries DIR FILE…: puts the libraries that the files need into DIR, .../lib/lodestone, where they look for
# them; $work/carried lists them.
carry_libraries() {
  local to=$1 file library path
  shift
  for file in "$@"; do
    [[ $(search_path_of "$file") == *'(RPATH)'*'[$ORIGIN/'*'lib/lodestone]' ]] ||
      fail "$(basename "$file") does not look for its libraries in lib/lodestone; see tools/bazel:libraries_beside"
  done
  mkdir -p "$to"
  libraries_of "$@" >"$work/carried"
  while read -r library path; do
    [ "$path" != 'not found' ] || fail "$library, which the programs need, is not here"
    [ -z "$(search_path_of "$path")" ] || fail "$path looks for its libraries in a place of its own"
    install -m 644 "$path" "$to/$library"
  done <"$work/carried"
  libraries_of "$@" | while read -r library path; do
    [ "$(realpath "$path")" = "$(realpath "$to")/$library" ] || fail "$library would still come from $path"
  done
}

# cuda_notice WORKER: what NVIDIA's licence wants to be told of the code of its in that program; nothing if there is none.
cuda_notice() {
  grep -qa cudart "$1" || return 0
  echo "The worker holds NVIDIA's CUDA runtime (cudart_static), which may be distributed within programs by attachment A of the"
  echo "End User License Agreement of NVIDIA's CUDA Toolkit (https://docs.nvidia.com/cuda/eula). What is built with"
  echo "--repo_env=LODESTONE_CUDA=no has nothing of it."
}

# write_notices TO [WORKER]: what the licences of the carried libraries want to be told, their texts as Debian keeps them;
# with WORKER also of the CUDA code in it.
write_notices() {
  local to=$1 worker=${2-} path package text sum packages notice
  cut -d' ' -f2 "$work/carried" | xargs realpath | sort -u >"$work/paths"
  # A library that dpkg installed to /lib is found in /usr/lib as well.
  sed 'p;s,^/usr,,' "$work/paths" | xargs dpkg-query -S 2>/dev/null | sed -n 's/^\([^ ,:]*\)\(:[a-z0-9]*\)\?: /\1 /p' >"$work/owners" || true
  while read -r path; do
    awk -v path="$path" '$2 == path || "/usr" $2 == path { print $1; found = 1 } END { exit !found }' "$work/owners" ||
      fail "$path is of no Debian package, so its licence is not known"
  done <"$work/paths" >"$work/packages"
  # What is compiled in, of libraries that are headers only.
  printf '%s\n' libcli11-dev nlohmann-json3-dev >>"$work/packages"
  sort -u -o "$work/packages" "$work/packages"

  mkdir "$work/licences"
  while read -r package; do
    text=/usr/share/doc/$package/copyright
    [ -f "$text" ] || fail "$text is not there"
    sum=$(sha256sum <"$text" | cut -d' ' -f1)
    cp "$text" "$work/licences/$sum.text"
    dpkg-query -W -f='${Package} ${Version}\n' "$package" >>"$work/licences/$sum.packages"
  done <"$work/packages"
  heading() { printf '\n%s\n%s\n%s\n\n' "$(printf '=%.0s' {1..100})" "$1" "$(printf '=%.0s' {1..100})"; }
  {
    echo "lib/lodestone holds libraries as Debian packages them, and the programs hold parts of others. These are their"
    echo "licences, by package, and at the end the texts that those refer to. Lodestone's own is in LICENSE."
    for packages in $(cd "$work/licences" && for file in *.packages; do echo "$(head -n 1 "$file") $file"; done | sort | awk '{ print $3 }'); do
      heading "$(paste -sd, "$work/licences/$packages" | sed 's/,/, /g')"
      cat "$work/licences/${packages%.packages}.text"
    done
    cat "$work"/licences/*.text | grep -o '/usr/share/common-licenses/[A-Za-z0-9.+-]*[A-Za-z0-9+]' | sort -u >"$work/common"
    while read -r text; do
      [ -f "$text" ] || fail "$text is not there"
      heading "$text"
      cat "$text"
    done <"$work/common"
    notice=$([ -z "$worker" ] || cuda_notice "$worker")
    [ -z "$notice" ] || { heading "CUDA runtime"; echo "$notice"; }
  } >"$to"
}

# take_configs DIR [FIND-CONDITION…]: copies those files of configs/ that belong to the tree.
take_configs() {
  local to=$1 file
  shift
  (cd "$root/configs" && find -L . -type f "$@" ! -name BUILD -printf '%P\n') | sort | while read -r file; do
    # Where git knows the tree, what it does not know is no part of the project.
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
