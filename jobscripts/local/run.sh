#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# A job on this machine, without a scheduler: one rank per GPU, or RANKS of them on the CPU.
#   RANKS=2 sh run.sh [PROGRAM [ARGUMENTS]]
set -eu
# shellcheck disable=SC2016 # the rank's own variables
[ $# -gt 0 ] || set -- sh -c 'echo "rank $RANK of $WORLD_SIZE on cores $(taskset -cp $$ | sed "s/.*: //")"'

berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
# Each rank's output also goes to its own file. The report describes how the job ended.
exec "$berth" run ${RANKS:+-n "$RANKS"} --log-dir logs --report report.json -- "$@"
