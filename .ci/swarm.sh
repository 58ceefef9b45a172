#!/usr/bin/env bash
# swarm.sh start|stop|status|host|cut N|mend N|in N COMMAND: a Swarm of three Docker daemons, each in a network namespace of its own, for the test suite.
# They share a bridge that lies in a further namespace, so that neither the host's packet filter nor the other daemon's
# networks are touched. The host has one address there: the machines reach the gateway, S3 and HDFS at it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck disable=SC1091
source "$here/common.sh"
dir=$rt/swarm
tag=${BFIA_SWARM_TAG:-bfiasw} # names of namespaces and links; at most 8 characters
net=${BFIA_SWARM_NET:-10.213.77}
machines="1 2 3"
export DOCKER_CONFIG=$dir/config

docker_at() { local n=$1; shift; DOCKER_HOST=unix://$dir/$n/s docker "$@"; }

machine_up() { # N: its daemon. The machine's own data is small, and never that of another
  local n=$1 at=$dir/$1
  mkdir -p "$at"
  nohup nsenter --net="/var/run/netns/$tag$n" setsid /usr/sbin/dockerd --data-root "$at/data" --exec-root "$at/exec" \
    -H "unix://$at/s" --pidfile "$at/pid" --bip "10.214.$n.1/24" --default-address-pool "base=10.215.$n.0/24,size=25" \
    --no-new-privileges --log-level warn --cgroup-parent "/$tag$n" >"$at/log" 2>&1 </dev/null &
  wait_for "swarm machine $n" 60 docker_at "$n" info
}

machine_down() {
  local pids
  end "$dir/$1/pid"
  end "$dir/$1/exec/containerd/containerd.pid"
  # shellcheck disable=SC2086
  if pids=$(ip netns pids "$tag$1" 2>/dev/null) && [ -n "$pids" ]; then kill -KILL $pids 2>/dev/null || true; fi
}

complete() { [ "$(docker_at 1 node ls --format '{{.Status}}' | grep -c Ready)" = 3 ]; }

case ${1:-start} in
  start)
    if docker_at 1 node ls >/dev/null 2>&1 && complete; then exit 0; fi
    bash "$0" stop
    mkdir -p "$dir/config"
    network_up
    for n in $machines; do machine_up "$n" & done; wait
    docker_at 1 swarm init --advertise-addr "$net.11" --default-addr-pool 10.216.0.0/16 >/dev/null
    token=$(docker_at 1 swarm join-token -q worker)
    for n in 2 3; do docker_at "$n" swarm join --token "$token" --advertise-addr "$net.1$n" "$net.11:2377" >/dev/null & done; wait
    for n in $machines; do docker save bfia-base:py311 | docker_at "$n" load -q >/dev/null & done; wait
    wait_for "swarm" 60 complete
    # so that a test that cuts the third machine off disturbs no other
    for n in $machines; do
      docker_at 1 node update --label-add "machine=$n" "$(docker_at "$n" info -f '{{.Swarm.NodeID}}')" >/dev/null
    done ;;
  stop)
    for n in $machines; do machine_down "$n" & done; wait
    for n in $machines; do
      for m in $(awk -v d="$dir/$n/" 'index($2, d) == 1 {print $2}' /proc/mounts | sort -r); do umount -l "$m" 2>/dev/null || true; done
    done
    network_down
    rm -rf "$dir" ;;
  status) if complete 2>/dev/null; then echo "swarm up"; else echo "swarm down"; exit 1; fi ;;
  cut) in_ns "$2" ip link set "$tag$2" down ;; # N: as if the machine had no power any more
  mend) # without its old connections: a manager that notices their end late takes the machine for gone, and gets no logs of it
    in_ns 1 ss -K -t dst "$net.1$2" >/dev/null 2>&1 || true
    in_ns "$2" ip link set "$tag$2" up
    in_ns "$2" ip route replace default via "$net.1"
    wait_for "swarm" 60 complete ;;
  in) n=$2; shift 2; in_ns "$n" "$@" ;; # N COMMAND: in the machine's network
  host) echo "$net.1" ;;
  *) die "usage: swarm.sh start|stop|status|host|cut N|mend N|in N COMMAND" ;;
esac
