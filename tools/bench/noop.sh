#!/bin/bash
# The container of the measurements with local processes: reports SUCCESS and exits. A shell starts faster than any
# interpreter, and what is to be measured is the gateway.
while IFS='=' read -r -d '' name value; do
  case $name in
    system.callback) callback=${value#http://} ;;
    config.task_id) task=$value ;;
    config.self_role) role=$value ;;
  esac
done < /proc/self/environ
host=${callback%%/*}
body="{\"task_id\": \"$task\", \"role\": \"$role\", \"status\": \"SUCCESS\"}"
exec 3<> "/dev/tcp/${host%:*}/${host##*:}"
printf 'POST /%s HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s' \
  "${callback#*/}" "$host" "${#body}" "$body" >&3
read -r -t 30 line <&3
[[ $line == *" 200 "* ]]
