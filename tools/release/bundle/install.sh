#!/bin/sh
# Installs, upgrades, rolls back and removes the gateway on a machine without a network; `install.sh --help`.
# Needs sh, tar, sha256sum and Python 3.11. What is written: $prefix (programs), $state (the node), a unit of systemd.
set -u
umask 022

here=$(cd "$(dirname "$0")" && pwd) || exit 1
prefix=/opt/bfia
state=/var/lib/bfia
user=bfia
node=
engine=
python=
service=yes
PROGRAM_MIB=900 # of a version with the demo
STATE_MIB=1024  # for a database, its backup and first results
unit=/etc/systemd/system/bfia-gateway.service
# shellcheck source=/dev/null
. "$here/release.env" # VERSION, COMMIT, MACHINE, GLIBC

# ------------------------------------------------------------ texts

case ${LC_ALL:-${LC_MESSAGES:-${LANG:-}}} in
  zh*) chinese=yes ;;
  *) chinese= ;;
esac

say() { # ENGLISH CHINESE
  if [ -n "$chinese" ]; then printf '%s\n' "$2"; else printf '%s\n' "$1"; fi
}

die() { # ENGLISH CHINESE
  say "$1" "$2" >&2
  exit 1
}

help() {
  if [ -n "$chinese" ]; then
    cat <<EOF
用法：install.sh 命令 [选项]

命令：
  install      安装本版本并初始化节点；可重复执行
  upgrade      备份数据库后升级到本版本，失败时自动回退
  rollback     回到上一个版本；必要时恢复升级前的备份
  check        只检查本机，不做任何改动
  demo         在本机运行两个机构的演示作业
  load-images  把容器镜像导入 Docker
  uninstall    删除程序和服务，保留数据

选项：
  --node 编号        节点编号，首次安装时必填，例如 JG0100001100000010
  --engine 引擎      docker 或 process；默认：能连上 Docker 时用 docker
  --prefix 目录      程序目录（默认 $prefix）
  --state 目录       节点的配置和数据目录（默认 $state）
  --user 用户        运行网关的用户（默认 $user），不存在时创建
  --python 路径      Python 3.11 解释器（默认在 PATH 中查找）
  --no-service       不写 systemd 服务
  -h, --help         显示本帮助

示例：
  ./install.sh check
  ./install.sh install --node JG0100001100000010
  ./install.sh demo
  ./install.sh upgrade
  ./install.sh rollback
EOF
    return
  fi
  cat <<EOF
Usage: install.sh COMMAND [OPTION ...]

Commands:
  install      install this version and initialise the node; can be repeated
  upgrade      back up the database and upgrade to this version; goes back if that fails
  rollback     return to the previous version; restores the backup if it has to
  check        check this machine, and change nothing
  demo         run the demo job of two institutions on this machine
  load-images  load the container images into Docker
  uninstall    remove programs and service; the data stay

Options:
  --node ID        id of the node, needed for the first installation, such as JG0100001100000010
  --engine ENGINE  docker or process; default: docker if a daemon responds
  --prefix DIR     folder of the programs (default $prefix)
  --state DIR      folder of the node's configuration and data (default $state)
  --user NAME      user that runs the gateway (default $user); created if missing
  --python PATH    interpreter of Python 3.11 (default: from PATH)
  --no-service     write no service of systemd
  -h, --help       show this help

Examples:
  ./install.sh check
  ./install.sh install --node JG0100001100000010
  ./install.sh demo
  ./install.sh upgrade
  ./install.sh rollback
EOF
}

# ------------------------------------------------------------ options

options() {
  while [ $# -gt 0 ]; do
    case $1 in
      --no-service) service= ;;
      -h | --help) help; exit 0 ;;
      --node | --engine | --prefix | --state | --user | --python)
        [ $# -ge 2 ] || die "$1 needs a value" "$1 需要一个值"
        case $1 in
          --node) node=$2 ;;
          --engine) engine=$2 ;;
          --prefix) prefix=$2 ;;
          --state) state=$2 ;;
          --user) user=$2 ;;
          --python) python=$2 ;;
        esac
        shift ;;
      *) die "unknown option $1; see install.sh --help" "未知选项 $1，参见 install.sh --help" ;;
    esac
    shift
  done
  case $prefix$state in *[[:space:]]*) die "--prefix and --state must not contain spaces" "--prefix 和 --state 不能含空格" ;; esac
  case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
  case $state in /*) ;; *) state=$PWD/$state ;; esac
  config=$state/node.yml
  backups=$state/backups
  target=$prefix/versions/$VERSION-$COMMIT
  if [ -z "$python" ]; then python=$(command -v python3.11 || command -v python3 || true); fi
}

# ------------------------------------------------------------ checks of the machine

problems=

problem() { # ENGLISH CHINESE
  problems=yes
  say "problem: $1" "问题：$2" >&2
}

check_machine() {
  [ "$(id -u)" = 0 ] || problem "this needs root; run it with sudo" "需要 root 权限，请用 sudo 运行"
  [ "$(uname -m)" = "$MACHINE" ] ||
    problem "the bundle is for $MACHINE, this machine is $(uname -m); use the bundle of that name" \
      "安装包适用于 $MACHINE，而本机是 $(uname -m)，请使用对应架构的安装包"
  check_python
  for tool in tar sha256sum df; do
    command -v "$tool" >/dev/null || problem "the command $tool is missing" "缺少命令 $tool"
  done
  check_space "$prefix" $PROGRAM_MIB
  check_space "$state" $STATE_MIB
  if ! (cd "$here" && sha256sum -c SHA256SUMS >/dev/null 2>&1); then
    problem "files of the bundle are damaged or missing; see: cd $here && sha256sum -c SHA256SUMS" \
      "安装包的文件损坏或缺失，请查看：cd $here && sha256sum -c SHA256SUMS"
  fi
}

check_python() {
  if [ -z "$python" ] || ! "$python" -I -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    problem "Python 3.11 is missing. Debian 12: apt install python3.11. openEuler 24.03: dnf install python3. Elsewhere: name one by --python, or use the container image in images/" \
      "缺少 Python 3.11。Debian 12：apt install python3.11；openEuler 24.03：dnf install python3；其他系统：用 --python 指定，或使用 images/ 中的容器镜像"
    return
  fi
  # shellcheck disable=SC2016
  lacking=$("$python" -I -c '
import importlib
for name in ("venv", "ssl", "sqlite3", "ctypes", "lzma", "bz2", "zlib"):
    try: importlib.import_module(name)
    except ImportError: print(name)
' | tr '\n' ' ')
  [ -z "$lacking" ] ||
    problem "$python lacks the modules $lacking(Debian: libpython3.11-stdlib; openEuler: python3-libs)" \
      "$python 缺少模块 $lacking（Debian：libpython3.11-stdlib；openEuler：python3-libs）"
  glibc=$("$python" -I -c 'import platform; print(platform.libc_ver()[1] or "0")')
  "$python" -I -c 'import sys; sys.exit(*[[int(x) for x in a.split(".")[:2]] < [int(x) for x in b.split(".")] for a, b in [sys.argv[1:]]])' \
    "$glibc" "$GLIBC" ||
    problem "glibc is $glibc; the packages need $GLIBC or newer. Use the container image in images/" \
      "glibc 版本为 $glibc，软件包需要 $GLIBC 或更高版本。请使用 images/ 中的容器镜像"
}

check_space() { # FOLDER MIB
  folder=$1
  until [ -d "$folder" ]; do folder=$(dirname "$folder"); done
  free=$(df -Pk "$folder" | awk 'NR == 2 { print int($4 / 1024) }')
  [ "${free:-0}" -ge "$2" ] ||
    problem "$1 needs $2 MiB, $folder has $free MiB free" "$1 需要 $2 MiB，而 $folder 只剩 $free MiB"
}

check_node() { # for the first installation
  [ -e "$config" ] && return
  case $node in
    '') problem "name the node's id: --node JG0100001100000010" "请指定节点编号：--node JG0100001100000010" ;;
    *[!A-Za-z0-9_-]*) problem "--node $node: letters and digits only" "--node $node：只能含字母和数字" ;;
  esac
  case $engine in
    '' | docker | process) ;;
    *) problem "--engine $engine: docker or process" "--engine $engine：只能是 docker 或 process" ;;
  esac
}

end_with_problems() {
  [ -z "$problems" ] || die "nothing was changed" "未做任何改动"
}

# ------------------------------------------------------------ programs

# The gateway's user owns $state and may have put links there: root writes nothing below it, and changes no owner.
as_user() { # COMMAND ...: with the rights of the gateway's user, in the node's folder
  "$python" -I -c '
import os, pwd, sys
import warnings # needed by execvp, when the library may be out of reach
entry = pwd.getpwnam(sys.argv[1])
os.initgroups(entry.pw_name, entry.pw_gid)
os.setgid(entry.pw_gid)
os.setuid(entry.pw_uid)
os.environ.update(HOME=entry.pw_dir, USER=entry.pw_name)
os.chdir(sys.argv[2])
os.umask(0o077)
os.execvp(sys.argv[3], sys.argv[3:])' "$user" "$state" "$@"
}

make_user() {
  if ! id "$user" >/dev/null 2>&1; then
    if command -v useradd >/dev/null; then
      useradd --system --user-group --home-dir "$state" --no-create-home --shell /usr/sbin/nologin "$user"
    else
      adduser -S -D -H -h "$state" "$user"
    fi || die "the user $user cannot be created" "无法创建用户 $user"
    say "created the user $user" "已创建用户 $user"
  fi
  mkdir -p "$state" && chown "$user" "$state" && chmod 700 "$state" && as_user mkdir -p "$backups" ||
    die "$state cannot be created" "无法创建 $state"
}

make_environment() { # FOLDER WHEELS LOCK
  rm -rf "$1"
  pip=$(echo "$here"/wheels/pip-*.whl)/pip # runs from its wheel: Debian's Python comes without one
  "$python" -I -m venv --without-pip "$1" &&
    "$1/bin/python" "$pip" install --quiet --no-index --no-deps --require-hashes \
      --disable-pip-version-check --no-cache-dir --root-user-action ignore --find-links "$2" --requirement "$3"
}

make_programs() { # in $target, whole or not at all
  if [ -e "$target/.complete" ]; then
    say "$VERSION is in $target already" "$VERSION 已在 $target 中"
    return
  fi
  say "installing $VERSION into $target" "正在把 $VERSION 安装到 $target"
  mkdir -p "$prefix/versions"
  make_environment "$target" "$here/wheels/gateway" "$here/wheels/gateway.txt" &&
    make_environment "$target/vendor" "$here/wheels/vendor" "$here/wheels/vendor.txt" &&
    "$target/bin/bfia-gateway" --version >/dev/null &&
    touch "$target/.complete" ||
    { rm -rf "$target"; die "the installation failed; nothing of it remains" "安装失败，未留下任何文件"; }
}

switch_to() { # FOLDER: of a version
  ln -sfn "$1" "$prefix/current.new" && mv -fT "$prefix/current.new" "$prefix/current" 2>/dev/null ||
    { rm -f "$prefix/current.new" "$prefix/current"; ln -s "$1" "$prefix/current"; }
  mkdir -p /usr/local/bin
  if [ "$prefix" = /opt/bfia ]; then ln -sf "$prefix/current/bin/bfia-gateway" /usr/local/bin/bfia-gateway; fi
}

current_version() { # its folder, also of an installation made by hand (a virtual environment in $prefix)
  if [ -L "$prefix/current" ]; then
    readlink "$prefix/current"
  elif [ -x "$prefix/bin/bfia-gateway" ]; then
    echo "$prefix"
  fi
}

# ------------------------------------------------------------ the service

has_systemd() { [ -n "$service" ] && [ -d /run/systemd/system ]; }

write_unit() {
  has_systemd || return 0
  sed -e "s#^User=.*#User=$user#" -e "s#/var/lib/bfia#$state#g" \
    -e "s#^ExecStart=.*#ExecStart=$prefix/current/bin/bfia-gateway serve --config $config#" \
    "$here/bfia-gateway.service" >"$unit"
  if ! getent group docker >/dev/null; then sed -i '/^SupplementaryGroups=docker/d' "$unit"; fi
  systemctl daemon-reload && systemctl enable --quiet bfia-gateway
}

start_service() {
  if has_systemd; then
    systemctl start bfia-gateway || die "the service did not start; see: journalctl -u bfia-gateway" \
      "服务未能启动，请查看：journalctl -u bfia-gateway"
    say "the service bfia-gateway runs" "服务 bfia-gateway 已启动"
  else
    say "systemd does not run here. Start the gateway as $user: $prefix/current/bin/bfia-gateway serve --config $config" \
      "本机没有运行 systemd。请以用户 $user 启动网关：$prefix/current/bin/bfia-gateway serve --config $config"
  fi
}

stop_service() {
  if has_systemd && [ -e "$unit" ]; then systemctl stop bfia-gateway; fi
  running=$(running_gateways)
  [ -z "$running" ] ||
    die "a gateway still uses $config: stop it (kill $running) and run this again" \
      "仍有网关在使用 $config：请先停止（kill $running），然后重新执行"
}

running_gateways() { # pids of gateways with the node's configuration
  for folder in /proc/[0-9]*; do
    words=$(tr '\000' ' ' <"$folder/cmdline" 2>/dev/null) || continue
    case $words in *serve*"$config"*) printf '%s ' "${folder#/proc/}" ;; esac
  done
}

# ------------------------------------------------------------ commands

install() {
  check_machine
  check_node
  previous=$(current_version)
  if [ -n "$previous" ] && [ "$previous" != "$target" ]; then
    problem "another version is installed in $previous; use: install.sh upgrade" \
      "已安装其他版本（$previous），请使用：install.sh upgrade"
  fi
  end_with_problems
  make_user
  make_programs
  switch_to "$target"
  if [ ! -e "$config" ]; then
    set -- --node "$node" --output "$config" --auth
    if [ -n "$engine" ]; then set -- "$@" --engine "$engine"; fi
    as_user "$target/bin/bfia-gateway" init "$@" || die "init failed" "init 失败"
  fi
  write_unit
  run_doctor
  start_service
  say "installed: $VERSION for the node in $config" "已安装 $VERSION，节点配置为 $config"
  token="runuser -u $user -- $prefix/current/bin/bfia-gateway token create admin --role admin --config $config"
  say "next: a token for the console: $token" "下一步：创建控制台令牌：$token"
}

run_doctor() {
  as_user "$prefix/current/bin/bfia-gateway" doctor --config "$config" ||
    say "doctor names steps to repair; the installation itself is complete" \
      "doctor 列出了需要处理的问题；安装本身已完成"
}

upgrade() {
  check_machine
  previous=$(current_version)
  [ -n "$previous" ] || problem "there is no installation in $prefix; use: install.sh install" \
    "$prefix 中没有安装，请使用：install.sh install"
  [ -e "$config" ] || problem "$config is missing; name the node's folder by --state" \
    "缺少 $config，请用 --state 指定节点目录"
  end_with_problems
  if [ "$previous" = "$target" ]; then
    say "$VERSION is installed already" "已安装 $VERSION"
    return
  fi
  make_user
  make_programs
  stop_service
  backup=$backups/before-$VERSION-$COMMIT-$(date -u +%Y%m%dT%H%M%SZ).zip
  as_user "$previous/bin/bfia-gateway" backup "$backup" --config "$config" ||
    { start_service; die "the backup failed; nothing was changed" "备份失败，未做任何改动"; }
  ln -sfn "$previous" "$prefix/previous"
  printf '%s\n' "$backup" >"$prefix/previous.backup"
  switch_to "$target"
  write_unit
  if ! as_user "$target/bin/bfia-gateway" migrate --config "$config"; then
    say "the database cannot be migrated; going back" "数据库迁移失败，正在回退" >&2
    return_to_previous
    start_service
    die "the previous version is in use again" "已恢复使用上一个版本"
  fi
  run_doctor
  start_service
  say "upgraded to $VERSION; the backup is $backup" "已升级到 $VERSION，备份文件为 $backup"
  say "to go back: install.sh rollback" "如需回退：install.sh rollback"
}

rollback() {
  [ "$(id -u)" = 0 ] || problem "this needs root; run it with sudo" "需要 root 权限，请用 sudo 运行"
  [ -e "$prefix/previous/bin/bfia-gateway" ] ||
    problem "there is no previous version in $prefix" "$prefix 中没有上一个版本"
  [ -e "$prefix/previous.backup" ] || problem "$prefix names no backup of an upgrade" "$prefix 中没有升级备份的记录"
  end_with_problems
  stop_service
  return_to_previous
  run_doctor
  start_service
  say "back at the version in $(readlink "$prefix/current")" "已回到 $(readlink "$prefix/current") 中的版本"
}

return_to_previous() {
  old=$(readlink "$prefix/previous")
  backup=$(cat "$prefix/previous.backup")
  if as_user "$old/bin/bfia-gateway" migrate --check --config "$config" >/dev/null 2>&1; then
    say "the previous version can use the database as it is" "上一个版本可以直接使用现有数据库"
  else
    restore_database "$old" "$backup"
  fi
  switch_to "$old"
  rm -f "$prefix/previous" "$prefix/previous.backup"
}

restore_database() { # VERSION'S FOLDER, BACKUP
  file=$(as_user "$1/bin/python" -c '
import sys
from pathlib import Path
from gateway.config.loader import load
url = load(Path(sys.argv[1])).database.url
print(url.removeprefix("sqlite:///") if url.startswith("sqlite:///") else "")' "$config")
  if [ -n "$file" ]; then
    aside=$backups/replaced-$(date -u +%Y%m%dT%H%M%SZ)
    # shellcheck disable=SC2016
    as_user sh -c '
mkdir -p "$1" || exit 1
for part in "$2" "$2-wal" "$2-shm"; do
  if [ -e "$part" ]; then mv "$part" "$1/" || exit 1; fi
done' sh "$aside" "$file" ||
      die "$user cannot move the newer database $file to $aside" "用户 $user 无法把较新的数据库 $file 移到 $aside"
    say "the newer database is kept in $aside" "较新的数据库保存在 $aside"
  else
    say "the database of the previous version is restored; it has to be empty (drop and create it)" \
      "正在恢复上一个版本的数据库；该数据库必须为空（请删除后重新创建）"
  fi
  as_user "$1/bin/bfia-gateway" restore "$2" --config "$config"
  code=$?
  # 1: something that the database names is not in the storage, which restore lists
  [ $code -le 1 ] || die "the backup $2 is not restored; correct what is said above and run this again" \
    "备份 $2 未能恢复；请按上述提示处理后重新执行"
}

uninstall() {
  [ "$(id -u)" = 0 ] || problem "this needs root; run it with sudo" "需要 root 权限，请用 sudo 运行"
  end_with_problems
  stop_service
  if [ -e "$unit" ] && has_systemd; then
    systemctl disable --quiet bfia-gateway
    rm -f "$unit"
    systemctl daemon-reload
  fi
  if [ "$(readlink /usr/local/bin/bfia-gateway)" = "$prefix/current/bin/bfia-gateway" ]; then
    rm -f /usr/local/bin/bfia-gateway
  fi
  rm -rf "$prefix/versions" "$prefix/current" "$prefix/previous" "$prefix/previous.backup"
  rmdir "$prefix" 2>/dev/null
  say "removed; the node's data stay in $state, and so does the user $user" \
    "已卸载；节点数据保留在 $state，用户 $user 也保留"
}

demo() {
  [ -e "$target/.complete" ] || die "install first: install.sh install" "请先安装：install.sh install"
  as_user mkdir -p "$state/demo" || die "$state/demo cannot be created" "无法创建 $state/demo"
  as_user "$target/bin/bfia-gateway" demo --dir "$state/demo" --vendor-python "$target/vendor/bin/python"
}

load_images() {
  command -v docker >/dev/null || die "Docker is missing" "缺少 Docker"
  for image in "$here"/images/*.tar; do
    docker load --input "$image" || exit 1
  done
}

command=${1:---help}
case $command in
  -h | --help) help; exit 0 ;;
esac
shift
options "$@"
case $command in
  install) install ;;
  upgrade) upgrade ;;
  rollback) rollback ;;
  uninstall) uninstall ;;
  demo) demo ;;
  load-images) load_images ;;
  check)
    check_machine
    end_with_problems
    say "this machine can run $VERSION" "本机可以运行 $VERSION" ;;
  *) die "unknown command $command; see install.sh --help" "未知命令 $command，参见 install.sh --help" ;;
esac
