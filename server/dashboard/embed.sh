#!/bin/bash
# Makes one document of the page's sources, and C++ of that:
#   embed.sh page.html page.css FIRST.js NEXT.js ... > dashboard_html.cc
# The document's policy lets nothing run or style it but these sources, which it names by their digests.
set -euo pipefail

html=$1 css=$2
shift 2

fail() {
  echo "embed.sh: $*" >&2
  exit 1
}

# What would end an element, or the C++ literal, too early.
! grep -l -i -e '</script' -e '<!--' "$@" >&2 || fail "</script and <!-- must not be in a script"
! grep -l -i '</style' "$css" >&2 || fail "</style must not be in $css"
! grep -l -F ')PAGE"' "$html" "$css" "$@" >&2 || fail ')PAGE" must not be in the page'

script() {
  printf "'use strict';\n"
  cat "$@"
}

# sha256-BASE64 of stdin.
digest() {
  local hex
  hex=$(sha256sum | cut -d ' ' -f 1)
  printf 'sha256-%s' "$(printf '%b' "$(sed 's/../\\x&/g' <<<"$hex")" | base64)"
}

policy="default-src 'none'; script-src '$(script "$@" | digest)'; style-src '$(digest <"$css")'; connect-src 'self'; "
policy+="img-src data:; base-uri 'none'; form-action 'none'"

document() {
  local line
  while IFS= read -r line; do
    case $line in
      @POLICY@) printf '<meta http-equiv="Content-Security-Policy" content="%s">\n' "$policy" ;;
      @STYLE@) printf '<style>' && cat "$css" && printf '</style>\n' ;;
      @SCRIPT@) printf '<script>' && script "$@" && printf '</script>\n' ;;
      *) printf '%s\n' "$line" ;;
    esac
  done <"$html"
}

echo '#include "server/dashboard/dashboard_html.h"'
echo
echo 'namespace lodestone::server {'
printf 'const std::string_view kPageHtml = R"PAGE('
document "$@"
echo ')PAGE";'
echo '}  // namespace lodestone::server'
