#!/usr/bin/env bash
# Starts one role of the image in the foreground, as the container's own process, so that signals
# reach it and its end is the container's end.
#
# A JobManager and a TaskManager take /opt/flink/conf/config.yaml, then what differs here: each line
# `key: value` of the file that TIDEGATE_FLINK_OVERLAY names, then the arguments -D key=value.
set -euo pipefail

usage() {
    cat <<'END'
usage: ROLE [ARGUMENT ...]
  jobmanager [-D key=value ...]    a Flink JobManager
  taskmanager [-D key=value ...]   a Flink TaskManager
  zookeeper                        Flink's ZooKeeper peer, for JobManager recovery (zoo.cfg)
  health ROLE                      exits with 0 if that role answers in this container
  tidegate ARGUMENT ...            the command of this project
  python | bash ARGUMENT ...       as they are; Flink's Kubernetes integration starts pods by bash
  help                             this text
END
}

refuse() {
    printf '%s\n  found:  %s\n  needed: %s\n  remedy: %s\n' "$@" >&2
    exit 2
}

# Fills `options` with what Flink's scripts take: -D key=value, as two words each. They would read
# one word as a host name.
options=()
read_options() {
    local file="${TIDEGATE_FLINK_OVERLAY:-}" line
    if [[ -n "${file}" ]]; then
        [[ -r "${file}" ]] || refuse "the Flink overlay cannot be read" "${file}" \
            "a readable file" "mount it, or correct TIDEGATE_FLINK_OVERLAY"
        while IFS= read -r line || [[ -n "${line}" ]]; do
            [[ -z "${line}" || "${line}" == \#* ]] && continue
            [[ "${line}" =~ ^[a-z][A-Za-z0-9.-]*:\ [^\ ]+$ ]] || refuse \
                "a line of the Flink overlay is not understood" "${line} (${file})" \
                "key: value, the value without blanks and quotes" "correct the line"
            options+=(-D "${line%%: *}=${line#*: }")
        done <"${file}"
    fi
    while (($#)); do
        [[ "$1" == -D && "${2:-}" == ?*=* ]] || refuse "an argument is not understood" "$*" \
            "-D key=value" "give each Flink setting so"
        options+=(-D "$2")
        shift 2
    done
}

role="${1:-help}"
(($#)) && shift

case "${role}" in
jobmanager | taskmanager)
    read_options "$@"
    exec "${FLINK_HOME}/bin/${role}.sh" start-foreground ${options[@]+"${options[@]}"}
    ;;
zookeeper)
    (($# == 0)) || refuse "zookeeper takes no argument" "$*" "none" "settings are in zoo.cfg"
    # What zookeeper.sh would do, but for the shell that it leaves in front: signals end there.
    exec "${FLINK_HOME}/bin/flink-console.sh" zookeeper \
        --zkConfigFile "${FLINK_CONF_DIR}/zoo.cfg" --peerId 1
    ;;
health)
    exec python /opt/tidegate/deploy/docker/health.py "$@"
    ;;
tidegate | python | bash)
    exec "${role}" "$@"
    ;;
help | -h | --help)
    usage
    ;;
*)
    refuse "no such role" "${role}" "jobmanager, taskmanager, zookeeper, health, tidegate, python or bash" \
        "see: docker run IMAGE help"
    ;;
esac
