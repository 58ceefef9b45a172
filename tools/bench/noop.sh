#!/bin/bash
# The container of the measurements with local processes: writes its outputs, reports SUCCESS and exits. A shell starts
# faster than any interpreter, and what is to be measured is the gateway.
outputs=()
while IFS='=' read -r -d '' name value; do
  case $name in
    system.callback) callback=${value#http://} ;;
    system.storage) storage=${value#file://} ;;
    runtime.component.output.*)
      IFS='"' read -r _ _ _ namespace _ _ _ output _ <<< "$value"
      outputs+=("$namespace/$output")
      ;;
    config.task_id) task=$value ;;
    config.self_role) role=$value ;;
  esac
done < /proc/self/environ
for output in "${outputs[@]}"; do
  mkdir -p "$storage/$output"
  printf 'id\n1\n' > "$storage/$output/data_0"
done
host=${callback%%/*}
body="{\"task_id\": \"$task\", \"role\": \"$role\", \"status\": \"SUCCESS\"}"
exec 3<> "/dev/tcp/${host%:*}/${host##*:}"
printf 'POST /%s HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s' \
  "${callback#*/}" "$host" "${#body}" "$body" >&3
read -r -t 30 line <&3
[[ $line == *" 200 "* ]]
