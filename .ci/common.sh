# shellcheck shell=bash
# What the service scripts share; to be sourced.
rt=${BFIA_RT:-/tmp/bfia-rt}
mkdir -p "$rt"; chmod 755 "$rt"

say() { printf '%s %s\n' "$(date +%T)" "$*" >&2; }
die() { say "FATAL: $*"; exit 1; }

alive() { # a pid file whose process runs; a zombie does not count
  local pid; [ -s "$1" ] || return 1
  pid=$(cat "$1" 2>/dev/null) || return 1 # some remove it when they end
  [ -r "/proc/$pid/status" ] && ! grep -q '^State:.[ZX]' "/proc/$pid/status"
}

wait_for() { # NAME SECONDS COMMAND...
  local name=$1 end=$((SECONDS + $2)); shift 2
  until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || die "$name is not ready"; sleep 0.1; done
  say "$name is ready"
}

end() { # PIDFILE [-SIGNAL]: end a process and wait until it is gone
  if alive "$1"; then
    kill "${2:--TERM}" "$(cat "$1")"
    local tries=100; while alive "$1" && [ $((tries--)) -gt 0 ]; do sleep 0.1; done
    if alive "$1"; then kill -KILL "$(cat "$1")"; fi
  fi
  rm -f "$1"
}

install_packages() {
  local missing=() p
  for p in "$@"; do dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p"); done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing ${missing[*]}"
  local options=(-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
  apt-get "${options[@]}" update -qq
  DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y -qq --no-install-recommends "${missing[@]}" \
    >"$rt/apt.log" 2>&1 || { tail -20 "$rt/apt.log" >&2; die "apt-get install failed"; }
}
