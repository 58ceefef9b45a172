# shellcheck shell=bash
# What the service scripts share; to be sourced.
rt=${BFIA_RT:-/tmp/bfia-rt}
mkdir -p "$rt"; chmod 755 "$rt"

say() { printf '%s %s\n' "$(date +%T)" "$*" >&2; }
die() { say "FATAL: $*"; exit 1; }

alive() { # FILE with the pid of a process that runs and names the file's folder of $rt in its command line (asked with builtins: a grep for it could have the number itself)
  local pid command folder=${1#"$rt/"}; [ -s "$1" ] || return 1
  pid=$(cat "$1" 2>/dev/null) || return 1 # some remove it when they end
  command=$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") || return 1 # a zombie has none
  [[ $command == *"$rt/${folder%%/*}/"* ]]
}

wait_for() { # NAME SECONDS COMMAND...
  local name=$1 end=$((SECONDS + $2)); shift 2
  until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || die "$name is not ready"; sleep 0.1; done
  say "$name is ready"
}

end() { # PIDFILE [-SIGNAL]: end a process and wait until it is gone; a daemon of Docker gives its containers 15 s
  if alive "$1"; then
    kill "${2:--TERM}" "$(cat "$1")" || true
    local tries=200; while alive "$1" && [ $((tries--)) -gt 0 ]; do sleep 0.1; done
    if alive "$1"; then kill -KILL "$(cat "$1")" || true; fi
  fi
  rm -f "$1"
}

bridge() { ip -4 -o address show docker0 | awk '{ sub("/.*", "", $4); print $4 }'; }

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

# ------------------------------------------------------------ machines: network namespaces $tag1, $tag2, … on one hub, at $net.11, $net.12, …

in_ns() { local ns=$1; shift; nsenter --net="/var/run/netns/$tag$ns" "$@"; }

link() { # NAME: a cable from there to the hub
  ip link add "$tag$1" type veth peer name "$tag$1b" netns "${tag}0"
  in_ns 0 ip link set "$tag$1b" master hub up
}

network_up() {
  local n
  ip netns add "${tag}0"
  in_ns 0 ip link add hub type bridge
  in_ns 0 ip link set hub up
  for n in $machines; do
    ip netns add "$tag$n"
    link "$n"
    ip link set "$tag$n" netns "$tag$n"
    in_ns "$n" ip link set lo up
    in_ns "$n" ip address add "$net.1$n/24" dev "$tag$n"
    in_ns "$n" ip link set "$tag$n" up
    in_ns "$n" ip route add default via "$net.1"
  done
  link h
  ip address add "$net.1/24" dev "${tag}h"
  ip link set "${tag}h" up
}

network_down() {
  local n
  ip link del "${tag}h" 2>/dev/null || true
  for n in 0 $machines; do ip netns del "$tag$n" 2>/dev/null || true; done
}
