#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# berth, whose trainings use gloo: the same tests hold for them.
[ "$1" = train ] || exec "$BUILD/bin/berth" "$@"
shift
exec "$BUILD/bin/berth" train --comm gloo "$@"
