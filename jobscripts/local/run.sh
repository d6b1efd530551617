#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# A job on this machine, without a scheduler: one rank a GPU, or RANKS of them on the CPU.
#   RANKS=2 sh run.sh [PROGRAM [ARGUMENTS]]
set -eu
# shellcheck disable=SC2016 # the rank's own variables
[ $# -gt 0 ] || set -- sh -c 'echo "rank $RANK of $WORLD_SIZE on cores $(taskset -cp $$ | sed "s/.*: //")"'

# Each rank's output goes to a file of its own as well; the report says how the job ended.
exec berth run ${RANKS:+-n "$RANKS"} --log-dir logs --report report.json -- "$@"
