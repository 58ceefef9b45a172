#!/usr/bin/env bash
# kubernetes.sh packages|install|start|stop|status|host|registry|tls-registry|runs NAMESPACE|cut N|mend N|in N COMMAND|kubectl ...: a Kubernetes of two machines for the test suite.
# Debian has its source alone: `install` compiles that into one program, kept by version outside the checkout (2 to 8 minutes, once).
# The control plane runs on the host; each kubelet has a containerd and a network namespace of its own, as the machines of swarm.sh do.
# Images come from a registry on the host. Pods are kept to NetworkPolicies by kubernetes/policies.py.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck disable=SC1091
source "$here/common.sh"
dir=$rt/kubernetes
tag=${BFIA_KUBERNETES_TAG:-bfiak8} # names of namespaces, links and cgroups; at most 8 characters
net=${BFIA_KUBERNETES_NET:-10.213.78}
gateways=$net.2 # the host's address that runs may reach
port=${BFIA_KUBERNETES_PORT:-17643} # of the API server; then those of etcd (two), the registry, the two controllers, the registry again by TLS
machines="1 2"
packages=(golang-go dpkg-dev etcd-server containerd runc containernetworking-plugins docker-registry iproute2 iptables openssl)
pki=$dir/pki
images=127.0.0.1:$((port + 3)) # the registry as images' names have it, of which it is the one on the host
by_tls=$net.1:$((port + 6)) # the same for gateways in the cluster

# ------------------------------------------------------------ compiling

install() {
  [ -e "$home/.done" ] && return
  install_packages "${packages[@]}"
  local work apt at; work=$(mktemp -d); mkdir -p "$work/lists/partial" "$work/go/src/k8s.io" "$home"
  # shellcheck disable=SC2064
  trap "rm -rf $work" EXIT
  at=$(apt-get indextargets --format '$(SITE) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' | awk '$2 == "bookworm" && $3 == "main" {print $1; exit}')
  [ -n "$at" ] || die "apt has no bookworm main, whose source this needs"
  echo "deb-src $at bookworm main" >"$work/sources.list"
  apt=(-qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists" -o APT::Sandbox::User=root -o Acquire::Retries=3)
  apt-get "${apt[@]}" update
  (cd "$work" && apt-get "${apt[@]}" source --download-only kubernetes && dpkg-source --no-check -x kubernetes_*.dsc go/src/k8s.io/kubernetes) >"$home/log"
  build "$work"
  touch "$home/.done"
  say "Kubernetes is compiled"
}

build() ( # FOLDER with the source; what this says decides whether an older result serves
  cd "$1/go/src/k8s.io/kubernetes"
  export GOPATH=$1/go GO111MODULE=off CGO_ENABLED=0 GOCACHE=$1/cache
  local release; release=$(sed -n '1s/.*really\([0-9.]*\).*/\1/p' debian/changelog)
  say "compiling Kubernetes $release"
  local vendor=k8s.io/kubernetes/vendor described # the only generated file that the source comes without
  described=$(grep -rl --include=*.go '^// +k8s:openapi-gen=' staging/src/k8s.io pkg | grep -v '/code-generator/\|/sample-apiserver/\|/zz_generated' |
    xargs -n1 dirname | sort -u | sed "s#^staging/src#$vendor#; s#^pkg#k8s.io/kubernetes/pkg#" | paste -sd,)
  go run ./vendor/k8s.io/kube-openapi/cmd/openapi-gen -O zz_generated.openapi -p k8s.io/kubernetes/pkg/generated/openapi -i "$described" \
    -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r /dev/null >>"$home/log" 2>&1 || die "see $home/log"
  # as later kubelets do: the exit of a container that was killed in a pod that is over is still reported
  sed -i 's/podWorkerTerminal = \(status.Phase == .*\) || (pod.DeletionTimestamp != nil && containersTerminal)/podWorkerTerminal = containersTerminal \&\& (\1 || pod.DeletionTimestamp != nil)/' \
    pkg/kubelet/kubelet_pods.go
  grep -q 'podWorkerTerminal = containersTerminal && (' pkg/kubelet/kubelet_pods.go || die "this version does not need the change any more"
  mkdir cmd/all; cp "$here/kubernetes/main.go" cmd/all/
  go build -trimpath -tags providerless,dockerless -o "$home/all" -ldflags "-s -w -X $vendor/k8s.io/client-go/pkg/version.gitVersion=v$release \
    -X $vendor/k8s.io/component-base/version.gitVersion=v$release -X $vendor/k8s.io/component-base/version.gitMajor=${release%%.*} \
    -X $vendor/k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$release")" ./cmd/all
  go build -trimpath -o "$home/pause" -ldflags "-s -w" "$here/kubernetes/pause.go"
  local name; for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do ln -sf all "$home/$name"; done
)

made=$({ declare -f build; cat "$here"/kubernetes/*.go; } | sha256sum | cut -c1-12)
home=${XDG_CACHE_HOME:-$HOME/.cache}/bfia-kubernetes/$made

# ------------------------------------------------------------ the control plane, on the host

certificate() { # NAME SUBJECT [ALTERNATIVE NAMES]
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$pki/$1.key" -subj "$2" 2>/dev/null |
    openssl x509 -req -days 3650 -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -out "$pki/$1.crt" \
      -extfile <(printf 'extendedKeyUsage=serverAuth,clientAuth\n%s' "${3:+subjectAltName=$3}") 2>/dev/null
}

certificates() {
  mkdir -p "$pki"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj /CN=bfia-test -keyout "$pki/ca.key" -out "$pki/ca.crt" 2>/dev/null
  certificate server /CN=kube-apiserver "IP:$net.1,IP:127.0.0.1,IP:10.217.0.1,DNS:kubernetes.default.svc"
  certificate admin /O=system:masters/CN=admin
  openssl genrsa -out "$pki/accounts.key" 2048 2>/dev/null
}

access() { # FILE NAMESPACE USER: a kubeconfig
  printf 'apiVersion: v1\nkind: Config\ncurrent-context: test\n' >"$1"
  printf 'clusters: [{name: test, cluster: {server: "https://%s:%s", certificate-authority: %s/ca.crt}}]\n' "$net.1" "$port" "$pki" >>"$1"
  printf 'contexts: [{name: test, context: {cluster: test, namespace: %s, user: test}}]\nusers: [{name: test, user: {%s}}]\n' "$2" "$3" >>"$1"
}

spawn() { # NAME COMMAND...
  local name=$1; shift
  nohup setsid "$@" >>"$dir/$name.log" 2>&1 </dev/null &
  echo $! >"$dir/$name.pid"
}

kubectl() { KUBECONFIG=$dir/admin.conf "$dir/bin/kubectl" --cache-dir="$dir/cache" "$@"; }

control_up() {
  local etcd=http://127.0.0.1:$((port + 1))
  spawn etcd etcd --data-dir "$dir/etcd" --unsafe-no-fsync --listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
    --listen-peer-urls "http://127.0.0.1:$((port + 2))" --initial-advertise-peer-urls "http://127.0.0.1:$((port + 2))" \
    --initial-cluster "default=http://127.0.0.1:$((port + 2))" --logger zap --log-level warn
  spawn kube-apiserver "$home/kube-apiserver" --etcd-servers "$etcd" --bind-address "$net.1" --advertise-address "$net.1" --secure-port "$port" \
    --service-cluster-ip-range 10.217.0.0/24 --authorization-mode RBAC --client-ca-file "$pki/ca.crt" \
    --tls-cert-file "$pki/server.crt" --tls-private-key-file "$pki/server.key" \
    --kubelet-preferred-address-types InternalIP --kubelet-client-certificate "$pki/admin.crt" --kubelet-client-key "$pki/admin.key" \
    --service-account-key-file "$pki/accounts.key" --service-account-signing-key-file "$pki/accounts.key" \
    --service-account-issuer https://bfia.test --feature-gates TTLAfterFinished=true
  wait_for "kube-apiserver" 90 kubectl get --raw /readyz
  # 20 s: a machine under load is not one that is gone
  spawn kube-controller-manager "$home/kube-controller-manager" --kubeconfig "$dir/admin.conf" --leader-elect=false --bind-address 127.0.0.1 \
    --secure-port $((port + 4)) --port 0 --service-account-private-key-file "$pki/accounts.key" --root-ca-file "$pki/ca.crt" \
    --use-service-account-credentials --node-monitor-period 1s --node-monitor-grace-period 20s --feature-gates TTLAfterFinished=true
  spawn kube-scheduler "$home/kube-scheduler" --kubeconfig "$dir/admin.conf" --leader-elect=false --bind-address 127.0.0.1 \
    --secure-port $((port + 5)) --port 0
}

registry_up() {
  printf 'version: 0.1\nlog: {level: warn}\nstorage: {filesystem: {rootdirectory: %s/images}}\nhttp: {addr: ":%s"}\n' \
    "$dir" $((port + 3)) >"$dir/registry.yml"
  spawn registry docker-registry serve "$dir/registry.yml"
  sed "s#{addr: .*#{addr: '$by_tls', tls: {certificate: $pki/server.crt, key: $pki/server.key}}#" "$dir/registry.yml" >"$dir/tls-registry.yml"
  spawn tls-registry docker-registry serve "$dir/tls-registry.yml"
  local image base=${BFIA_TEST_BASE_IMAGE:-bfia-base:py311}
  wait_for "registry" 30 bash -c "exec 3<>/dev/tcp/127.0.0.1/$((port + 3))"
  tar -C "$home" -c pause | docker import -c 'ENTRYPOINT ["/pause"]' - "$images/pause:1" >/dev/null
  docker tag "$base" "$images/$base"
  for image in pause:1 "$base"; do docker push -q "$images/$image" >/dev/null; docker rmi "$images/$image" >/dev/null; done
}

# ------------------------------------------------------------ machines

machine_up() { # N: what it has at fixed places is its own, in a mount namespace
  local n=$1 at=$dir/$1 one
  mkdir -p "$at"/{kubelet,containerd,cni,pods,links,net.d,plugins}
  ln -sf /usr/lib/cni/* "$here/kubernetes/policies.py" "$at/plugins/"
  # the one service that pods use, as kube-proxy would do it
  in_ns "$n" iptables -t nat -A PREROUTING -d 10.217.0.1 -p tcp --dport 443 -j DNAT --to "$net.1:$port"
  in_ns "$n" iptables -t nat -A POSTROUTING -s "10.218.$n.0/24" ! -d 10.218.0.0/16 -j MASQUERADE
  in_ns "$n" iptables -t nat -N BFIA-SERVICES
  in_ns "$n" iptables -t nat -A PREROUTING -j BFIA-SERVICES
  for one in OUT IN; do in_ns "$n" iptables -N BFIA-$one; done # filled by policies.py
  for one in "INPUT -s" "FORWARD -s"; do in_ns "$n" iptables -A $one "10.218.$n.0/24" -j BFIA-OUT; done
  in_ns "$n" iptables -A FORWARD -d "10.218.$n.0/24" -j BFIA-IN
  in_ns "$n" sysctl -qw net.ipv4.ip_forward=1
  for one in /sys/fs/cgroup/*/; do [ -e "$one/cgroup.procs" ] && mkdir -p "$one$tag$n"; done 2>/dev/null
  cat >"$at/containerd.toml" <<TOML
version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$images/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$at/plugins"
    conf_dir = "$at/net.d"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "$at/registries"
TOML
  mkdir -p "$at/registries/$images" "$at/registries/$by_tls"
  printf '[host."https://%s"]\nca = "%s/ca.crt"\n' "$by_tls" "$pki" >"$at/registries/$by_tls/hosts.toml"
  printf 'server = "%s"\n[host."%s"]\n' "http://$net.1:$((port + 3))" "http://$net.1:$((port + 3))" >"$at/registries/$images/hosts.toml"
  cat >"$at/net.d/10-pods.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.218.$n.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "policies.py", "addresses": "$dir/addresses", "api": "https://$net.1:$port", "pki": "$pki", "machines": [$(list "$tag")]}]}
JSON
  cat >"$at/kubelet.yml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: AlwaysAllow}
address: $net.1$n
healthzPort: 0
cgroupDriver: cgroupfs
cgroupRoot: /$tag$n
enforceNodeAllocatable: []
failSwapOn: false
makeIPTablesUtilChains: false
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
registryPullQPS: 0
eventRecordQPS: 0
kubeAPIQPS: 100
kubeAPIBurst: 200
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 10
podPidsLimit: 512
serializeImagePulls: false
YAML
  cat >"$at/boot" <<BOOT
set -eu
mount --make-rshared /
at=$at
put() { mkdir -p "\$2"; mount --bind "\$at/\$1" "\$2"; }
put kubelet /var/lib/kubelet; put containerd /var/lib/containerd; put cni /var/lib/cni; put pods /var/log/pods; put links /var/log/containers
mkdir -p /run/containerd; mount -t tmpfs runtime /run/containerd
containerd --config \$at/containerd.toml >>\$at/containerd.log 2>&1 &
until ctr version >/dev/null 2>&1; do sleep 0.1; done
export HTTP2_READ_IDLE_TIMEOUT_SECONDS=5 HTTP2_PING_TIMEOUT_SECONDS=5 # a cable that was cut is noticed
exec $home/kubelet --kubeconfig $dir/admin.conf --config \$at/kubelet.yml --hostname-override machine$n --node-ip $net.1$n \
  --container-runtime remote --container-runtime-endpoint unix:///run/containerd/containerd.sock --node-labels machine=$n
BOOT
  spawn "machine$n" nsenter --net="/var/run/netns/$tag$n" unshare --mount --propagation private bash "$at/boot"
}

list() { local n; for n in $machines; do printf '"%s%s"' "$1" "$n"; done | sed 's/""/", "/g'; }

routes() { # N: from there and from the host to the pods of the other machines
  local other
  in_ns "$1" ip route replace default via "$net.1"
  for other in $machines; do [ "$other" = "$1" ] || in_ns "$1" ip route replace "10.218.$other.0/24" via "$net.1$other"; done
  ip route replace "10.218.$1.0/24" via "$net.1$1"
}

machine_down() { # everything in its network and its cgroup
  local tries=50 pids
  while pids=$(ip netns pids "$tag$1" 2>/dev/null; find /sys/fs/cgroup/memory/"$tag$1" -name cgroup.procs -exec cat {} + 2>/dev/null) && [ -n "$pids" ] &&
    [ $((tries--)) -gt 0 ]; do
    # shellcheck disable=SC2086
    kill -KILL $pids 2>/dev/null || true; sleep 0.1
  done
  rm -f "$dir/machine$1.pid"
  find /sys/fs/cgroup/*/"$tag$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
}

runs() { # NAMESPACE: has what is shipped for runs there, with the addresses of the tests
  sed -e "s#10.0.0.5/32}}\] .*#$gateways/32}}]#; /ports: \[{port: 7381}\]/d" -e "s#10.0.0.7/32#$(bridge)/32#; s#port: 9000#port: ${S3_PORT:-17480}#" \
    "$here/../compose/kubernetes/runs.yml" | kubectl apply -n "$1" -f - >/dev/null
}

account() { # what a gateway gets
  kubectl get namespace bfia >/dev/null 2>&1 || kubectl create namespace bfia >/dev/null
  runs bfia
  local token; token=$(kubectl create --raw /api/v1/namespaces/bfia/serviceaccounts/bfia-gateway/token -f - \
    <<<'{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 31536000}}')
  access "$dir/gateway.conf" bfia "token: $(sed -n 's/.*"token":"\([^"]*\)".*/\1/p' <<<"$token")"
}

ready() { [ "$(kubectl get nodes --no-headers 2>/dev/null | awk '$2 == "Ready"' | wc -l)" = 2 ] && kubectl -n default get serviceaccount default; }

case ${1:-} in
  packages) echo "${packages[*]}" ;;
  install) install ;;
  start)
    [ -e "$home/.done" ] || die "kubernetes.sh install comes first"
    if ! ready >/dev/null 2>&1; then
      bash "$0" stop
      mkdir -p "$dir"; ln -s "$home" "$dir/bin"
      network_up; certificates
      access "$dir/admin.conf" default "client-certificate: $pki/admin.crt, client-key: $pki/admin.key"
      registry_up & filled=$!
      control_up
      wait $filled
      # the last two as a cloud's metadata and something in the internet would be reached
      for one in "$gateways/24" 169.254.169.254/32 198.51.100.1/32; do ip address add "$one" dev "${tag}h"; done
      for n in $machines; do routes "$n"; machine_up "$n"; done
      wait_for "kubernetes" 120 ready
    fi
    account ;;
  stop)
    for name in kube-scheduler kube-controller-manager; do end "$dir/$name.pid"; done
    for n in $machines; do machine_down "$n" & done; wait
    for name in kube-apiserver etcd registry tls-registry; do end "$dir/$name.pid" -KILL; done
    network_down
    rm -rf "$dir" ;;
  status) if ready >/dev/null 2>&1; then echo "kubernetes up"; else echo "kubernetes down"; exit 1; fi ;;
  cut) in_ns "$2" ip link set "$tag$2" down ;; # N: as if the machine had no power any more
  mend)
    in_ns "$2" ip link set "$tag$2" up
    routes "$2"
    wait_for "kubernetes" 120 ready ;;
  in) n=$2; shift 2; in_ns "$n" "$@" ;; # N COMMAND: in the machine's network
  host) echo "$gateways" ;;
  registry) echo "$images" ;;
  runs) runs "$2" ;;
  tls-registry) echo "$by_tls" ;;
  kubectl) shift; kubectl "$@" ;;
  *) die "usage: kubernetes.sh packages|install|start|stop|status|host|registry|tls-registry|runs NAMESPACE|cut N|mend N|in N COMMAND|kubectl ..." ;;
esac
